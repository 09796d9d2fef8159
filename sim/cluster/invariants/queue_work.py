"""`WorkBounded`: no entry of a queue partition touches more messages than one entry may (promise: no flood of due messages delays a commit).

A message that frees its line brings the next one of the line with it, which does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raftmq.fsm.queue import partition
from raftmq.fsm.queue.message import LINED, Message
from raftmq.fsm.queue.results import Chained, Leased, Results, Settled
from raftmq.fsm.queue.state import QueueState

from sim.core.invariants.violation import demand


def watch_work(on_entry: Callable[[Callable[[], None]], None]) -> Callable[[], None]:
    """Count the messages that leave their state in each entry. Return a function that ends it.

    Args:
        on_entry: Called after each entry with the check of its work.
    """
    leave, promote = QueueState.leave, QueueState.promote
    finish_entry, advance = partition.QueuePartition._finish_entry, partition.QueuePartition._advance

    def counted_leave(self: Any, m: Message) -> None:  # noqa: ANN401 -- the product's method
        if m.state != LINED:
            self.work = getattr(self, "work", 0) + 1
        leave(self, m)

    def counted_promote(self: Any, messages: Sequence[Message]) -> None:  # noqa: ANN401 -- the product's method
        self.work = getattr(self, "work", 0) + sum(not m.line for m in messages)  # the others leave their state
        promote(self, messages)

    def ended_entry(self: Any) -> None:  # noqa: ANN401 -- the product's method
        finish_entry(self)
        self.entry_work, self.state.work = getattr(self.state, "work", 0), 0

    def watched_advance(self: Any, found: Any) -> Any:  # noqa: ANN401 -- the product's method
        result = advance(self, found)
        if isinstance(result, Results | Chained):
            work = self.entry_work + _named(result)
            on_entry(
                lambda: demand(work <= vars(partition)["WORK_MAX"], "WorkBounded", f"an entry touched {work} messages")
            )
        return result

    changes: tuple[tuple[Any, str, Any, Any], ...] = (
        (QueueState, "leave", counted_leave, leave),
        (QueueState, "promote", counted_promote, promote),
        (partition.QueuePartition, "_finish_entry", ended_entry, finish_entry),
        (partition.QueuePartition, "_advance", watched_advance, advance),
    )
    for owner, name, value, _ in changes:
        setattr(owner, name, value)

    def undo() -> None:
        for owner, name, _, kept in changes:
            setattr(owner, name, kept)

    return undo


def _named(results: Results | Chained) -> int:
    """Return the messages that were leased or accepted, which leave their state in a loop of their own, or were put with these."""
    items = (results.settled,) if isinstance(results, Chained) else results.items
    leased = sum(sum(item.counts) for item in items if isinstance(item, Leased))
    put = results.enqueued.count if isinstance(results, Chained) else 0
    return (
        leased
        + put
        + sum(
            count
            for item in items
            if isinstance(item, Settled)
            for code, count in zip(item.codes, item.counts, strict=True)
            if not code
        )
    )
