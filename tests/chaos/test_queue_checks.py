"""The checks of a queue run find copies that are missing, doubled or wrong, and nothing in a run that went well."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from raftmq import BrowsedMessage, ScheduleDescription
from raftmq.client.queue.views import MessageStateName

from tests.chaos.queue_checks import Copies, Firings
from tests.chaos.queue_journal import FIRING


def message(sequence: int, state: MessageStateName, *, copy_of: int = -1) -> BrowsedMessage:
    origin = (("raftmq.dead_letter.partition", b"0"), ("raftmq.dead_letter.sequence", b"%d" % copy_of))
    return BrowsedMessage(
        0, sequence, None, "", None, 0, state, 1, 1, 0, 0, 0, None, "", "", "", 0, origin if copy_of >= 0 else (), b""
    )


class Pages:
    """A topic whose content changes with each look. The last content remains."""

    def __init__(self, *contents: Sequence[BrowsedMessage]) -> None:
        self._contents = list(contents)

    async def browse(
        self, state: MessageStateName | None = None, *, with_values: bool = False
    ) -> AsyncIterator[BrowsedMessage]:
        content = self._contents.pop(0) if len(self._contents) > 1 else self._contents[0]
        for one in content:
            if state in (None, one.state):
                yield one if with_values else replace(one, headers=())


async def compared(source: Pages, target: Pages) -> list[str]:
    return await Copies(source, target, seconds=0.0).compare()


def copies(*sequences: int) -> list[BrowsedMessage]:
    return [message(at, "ready", copy_of=sequence) for at, sequence in enumerate(sequences)]


async def test_each_dead_message_has_one_copy() -> None:
    dead = [message(3, "dead"), message(5, "dead"), message(6, "ready")]
    assert await compared(Pages(dead), Pages(copies(3, 5))) == []
    assert await compared(Pages(dead), Pages(copies(3))) == ["the dead message (0, 5) has no copy after 0 s"]
    assert await compared(Pages(dead), Pages(copies(3, 5, 5))) == ["the dead message (0, 5) was copied 2 times"]
    assert await compared(Pages(dead), Pages(copies(3, 5, 6))) == ["message (0, 6) was copied, and is not dead"]


async def test_a_message_that_expires_during_the_comparison_may_be_copied() -> None:
    """It was reported once: the dead were listed before it expired, and the copies after that."""
    source = Pages([message(3, "ready")], [message(3, "dead")])
    assert await compared(source, Pages(copies(3))) == []


async def test_a_cancelled_dead_message_leaves_its_copy() -> None:
    assert await compared(Pages([]), Pages(copies(3))) == []


def test_firings_are_compared_with_the_due_times() -> None:
    made = ScheduleDescription(FIRING, 0, "", "UTC", 1_000, 0, "all", False, 1, 5_000, None, 0)
    firings = Firings("t", made)
    assert firings.compare(0) == ["the schedule never fired"]
    firings.last = replace(made, last_fired_ms=9_000, skipped=2)
    assert firings.compare(3) == []
    assert firings.compare(4) == ["the schedule had 3 due times and made 4 messages"]
