"""`WorkBounded`: no entry of a queue partition touches more messages than one entry may (promise: no flood of due messages delays a commit).

A message counts once for each thing that is done to it. The neighbours in its line do not count: when a message frees its line, it brings the
next one with it, and one that joins its line displaces at most the holder. Nor does a repeated answer of a session, which touches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raftmq.fsm.queue import housekeeping, key_lines, partition, settlements
from raftmq.fsm.queue.commands import Operation
from raftmq.fsm.queue.message import LINED, Message
from raftmq.fsm.queue.results import Chained, Leased, Results
from raftmq.fsm.queue.state import QueueState

from sim.core.invariants.violation import demand


def watch_work(on_entry: Callable[[Callable[[], None]], None]) -> Callable[[], None]:
    """Count the messages that each entry touches. Return a function that ends it.

    Most of them leave their state by `leave`. Promotions, leases, acceptances and renewals do not, and are counted where they happen.

    Args:
        on_entry: Called after each entry with the check of its work.
    """
    leave, promote = QueueState.leave, QueueState.promote
    join, settle_one, accept_run = key_lines.join, settlements._settle_one, settlements.accept_run
    tally = partition.QueuePartition._tally
    keep_house, promote_due = housekeeping.keep_house, housekeeping._promote
    finish_entry, advance = partition.QueuePartition._finish_entry, partition.QueuePartition._advance

    def counted_leave(self: Any, m: Message) -> None:  # noqa: ANN401 -- the product's method
        _add(self, m.state != LINED)
        leave(self, m)

    def counted_promote(self: Any, messages: Sequence[Message]) -> None:  # noqa: ANN401 -- the product's method
        _add(self, sum(not m.line for m in messages))  # the others leave their state
        promote(self, messages)

    def join_without_counting(state: Any, m: Message) -> None:  # noqa: ANN401 -- the product's function
        before = _work(state)
        join(state, m)
        state.work = before

    def counted_settle_one(state: Any, operation: int, m: Message, detail: Any) -> Any:  # noqa: ANN401 -- as above
        _add(state, operation == Operation.RENEW)  # the others leave their state
        return settle_one(state, operation, m, detail)

    def counted_accept_run(state: Any, *arguments: Any) -> None:  # noqa: ANN401 -- the product's function
        before = state.store.leased_count
        accept_run(state, *arguments)
        _add(state, before - state.store.leased_count)

    def counted_tally(self: Any, result: Leased) -> None:  # noqa: ANN401 -- the product's method
        _add(self.state, sum(result.counts))
        tally(self, result)

    def watched_house(state: Any, *arguments: Any) -> Any:  # noqa: ANN401 -- the product's function
        before, due_max = _work(state), arguments[-1]
        state.work_before_promotions = before + due_max - due_max // 2 if due_max else None
        done = yield from keep_house(state, *arguments)
        work = _work(state) - before
        if due_max:
            on_entry(lambda: demand(work <= due_max, "WorkBounded", f"{work} due messages in an entry for {due_max}"))
        return done

    def watched_promote_due(state: Any, count_max: int) -> Any:  # noqa: ANN401 -- the product's function
        work, work_max = _work(state), state.work_before_promotions
        if work_max is not None:
            on_entry(lambda: demand(work <= work_max, "WorkBounded", f"{work} messages ended before promotions"))
        return (yield from promote_due(state, count_max))

    def ended_entry(self: Any) -> None:  # noqa: ANN401 -- the product's method
        finish_entry(self)
        self.entry_work, self.state.work = _work(self.state), 0

    def watched_advance(self: Any, found: Any) -> Any:  # noqa: ANN401 -- the product's method
        result = advance(self, found)
        if isinstance(result, Results | Chained):
            put = result.enqueued.count if isinstance(result, Chained) else 0
            work = self.entry_work + put
            on_entry(
                lambda: demand(work <= vars(partition)["WORK_MAX"], "WorkBounded", f"an entry touched {work} messages")
            )
        return result

    changes: tuple[tuple[Any, str, Any, Any], ...] = (
        (QueueState, "leave", counted_leave, leave),
        (QueueState, "promote", counted_promote, promote),
        (key_lines, "join", join_without_counting, join),
        (settlements, "_settle_one", counted_settle_one, settle_one),
        (settlements, "accept_run", counted_accept_run, accept_run),
        (partition.QueuePartition, "_tally", counted_tally, tally),
        (partition, "keep_house", watched_house, keep_house),
        (housekeeping, "_promote", watched_promote_due, promote_due),
        (partition.QueuePartition, "_finish_entry", ended_entry, finish_entry),
        (partition.QueuePartition, "_advance", watched_advance, advance),
    )
    for owner, name, value, _ in changes:
        setattr(owner, name, value)

    def undo() -> None:
        for owner, name, _, kept in changes:
            setattr(owner, name, kept)

    return undo


def _work(state: Any) -> int:  # noqa: ANN401 -- the product's state, with the count of the present entry
    return int(getattr(state, "work", 0))


def _add(state: Any, messages: int) -> None:  # noqa: ANN401 -- as above
    state.work = _work(state) + messages
