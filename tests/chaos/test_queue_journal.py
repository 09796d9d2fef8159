"""Journals of a queue's clients become a history in which broken promises are found, and times that a client cannot know break none."""

from __future__ import annotations

import json
from pathlib import Path

from sim.history.queues.checker import judge_queues
from sim.history.queues.operations import Put
from tests.chaos.queue_checks import ids_enqueued_twice
from tests.chaos.queue_journal import FIRING, Line, history_of, is_firing

ENQUEUED_MS = 1_000_000
LEASE_MS = 1_500


def put(at: float, value: str = "a", *, call: int = 1, sequence: int = 0, **fields: object) -> list[Line]:
    base = {"what": "put", "process": "p", "at": at, "call": call, "value": value}
    asked = base | {"tenant": "", "key": "", "id": "", "delay_ms": 0, "expires_ms": 0} | fields
    answer = {"what": "answer", "at": at + 0.01, "call": call, "partition": 0, "sequence": sequence}
    return [asked, answer | {"is_deduplicated": False}]


def lease(
    at: float, number: int = 1, value: str = "a", sequence: int = 0, enqueued_ms: int = ENQUEUED_MS
) -> list[Line]:
    base = {"what": "leased", "process": "w", "at": at, "partition": 0, "sequence": sequence, "number": number}
    return [base | {"value": value, "enqueued_ms": enqueued_ms, "lease_ms": LEASE_MS}]


def change(at: float, verb: str, *, delay_ms: int = 0, answer: str | None = "done") -> list[Line]:
    base = {"what": "change", "process": "o", "at": at, "call": 20, "verb": verb, "delay_ms": delay_ms}
    asked = base | {"partition": 0, "sequence": 0}
    return [asked, {"what": "answer", "at": at + 0.01, "call": 20} | ({"answer": answer} if answer else {})]


def purge(at: float, tenant: str) -> list[Line]:
    asked = {"what": "purge", "process": "o", "at": at, "call": 30, "partition": 0, "tenant": tenant}
    return [asked, {"what": "answer", "at": at + 0.01, "call": 30, "is_over": True}]


def settle(
    at: float, verb: str, number: int = 1, *, call: int = 9, answer: str | None = "done", delay_ms: int = 0
) -> list[Line]:
    base = {"what": "settle", "process": "w", "at": at, "call": call, "verb": verb, "delay_ms": delay_ms}
    asked = base | {"partition": 0, "sequence": 0, "number": number}
    return [asked, {"what": "answer", "at": at + 0.01, "call": call} | ({"answer": answer} if answer else {})]


def anomalies(folder: Path, *parts: list[Line], is_clock_steady: bool = True) -> list[str]:
    lines = [line for part in parts for line in part]
    path = folder / "journal.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"what": "torn')
    return sorted(one.anomaly for one in judge_queues(history_of([path], is_clock_steady=is_clock_steady), {0}))


def drained(at: float = 90.0) -> list[Line]:
    return [{"what": "drained", "process": "d", "at": at, "partition": 0, "left": {}}]


def test_a_message_that_is_worked_on_breaks_nothing(tmp_path: Path) -> None:
    assert anomalies(tmp_path, put(1), lease(1.1), settle(1.2, "accept"), drained()) == []


def test_a_delayed_message_that_comes_at_once_is_early(tmp_path: Path) -> None:
    assert anomalies(tmp_path, put(1, delay_ms=900), lease(1.1)) == ["early"]
    assert anomalies(tmp_path, put(1, delay_ms=900), lease(1.9)) == []


def test_a_second_lease_before_the_first_can_have_ended_is_found(tmp_path: Path) -> None:
    assert anomalies(tmp_path, put(1), lease(1.1), lease(1.3, 2)) == ["leased_twice"]
    assert anomalies(tmp_path, put(1), lease(1.1), settle(1.2, "release"), lease(1.3, 2)) == []
    assert anomalies(tmp_path, put(1), lease(1.1), lease(2.7, 2)) == []


def test_leases_that_arrive_in_another_order_than_they_began_break_nothing(tmp_path: Path) -> None:
    assert anomalies(tmp_path, put(1), lease(2.8, 2), lease(4.9, 1)) == []


def test_a_message_accepted_under_two_leases_is_found(tmp_path: Path) -> None:
    again = settle(3.1, "accept", 2, call=10)
    found = anomalies(tmp_path, put(1), lease(1.1), lease(3.0, 2), settle(3.05, "accept"), again)
    assert found == ["resurrected", "settled_twice"]


def test_an_accepted_message_without_an_end_is_lost(tmp_path: Path) -> None:
    assert anomalies(tmp_path, put(1), drained()) == ["lost"]
    assert anomalies(tmp_path, put(1), lease(1.1), settle(1.2, "accept", answer=None), drained()) == []


def test_a_key_out_of_order_is_found(tmp_path: Path) -> None:
    both = put(1, key="k"), put(1.1, "b", call=2, sequence=1, key="k")
    assert anomalies(tmp_path, *both, lease(1.3, value="b", sequence=1)) == ["misordered"]


def test_an_id_that_is_enqueued_twice_is_found(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    lines = [*put(1, id="x"), *put(2, "b", call=2, sequence=5, id="x")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert ids_enqueued_twice(history_of([path])) == ["id x was enqueued at [(0, 0), (0, 5)]"]


def test_a_cancelled_message_must_not_come(tmp_path: Path) -> None:
    late = lease(1.3), settle(1.4, "accept")
    assert anomalies(tmp_path, put(1), change(1.1, "cancel"), *late) == ["resurrected"]
    assert anomalies(tmp_path, put(1), change(1.1, "cancel", answer="other"), *late) == []
    assert anomalies(tmp_path, put(1), change(1.1, "cancel"), drained()) == []
    assert anomalies(tmp_path, put(1), change(1.1, "cancel", answer="other"), drained()) == ["lost"]


def test_a_purged_message_is_not_lost(tmp_path: Path) -> None:
    assert anomalies(tmp_path, put(1, tenant="doomed.eu"), purge(1.1, "doomed"), drained()) == []
    assert anomalies(tmp_path, put(1, tenant="acme"), purge(1.1, "doomed"), drained()) == ["lost"]


def seen(at: float, ms: int, sequence: int, value: str) -> list[Line]:
    """Return a message that tells the queue time of a moment."""
    call = 100 + sequence
    told = put(at, value, call=call, sequence=sequence), lease(at + 0.02, 1, value, sequence, ms)
    return [line for part in told for line in part]


def test_other_messages_tell_when_a_released_or_moved_one_is_due(tmp_path: Path) -> None:
    first = seen(1.0, ENQUEUED_MS, 8, "x")
    released = put(0.5), lease(1.2), settle(1.3, "release", delay_ms=900)
    next_one = seen(1.6, ENQUEUED_MS + 600, 9, "y")
    early = lease(1.5, 2)
    late = lease(2.4, 2)
    assert anomalies(tmp_path, first, *released, early, next_one) == ["early"]
    assert anomalies(tmp_path, first, *released, late, next_one) == []
    moved = put(0.5), change(1.3, "move", delay_ms=900), lease(1.5), settle(1.55, "accept"), next_one
    assert anomalies(tmp_path, first, *moved) == ["early"]


def test_a_clock_that_stepped_forward_makes_nothing_early(tmp_path: Path) -> None:
    delayed = put(1, delay_ms=900), lease(1.1)
    day_later = seen(1.2, ENQUEUED_MS + 86_400_000, 9, "y")
    assert anomalies(tmp_path, *delayed, day_later, is_clock_steady=False) == []
    soon_after = seen(1.2, ENQUEUED_MS + 200, 9, "y")
    assert anomalies(tmp_path, *delayed, soon_after, is_clock_steady=False) == ["early"]
    leased_again = put(1), lease(1.1), lease(1.15, 2)
    assert anomalies(tmp_path, *leased_again, soon_after, is_clock_steady=False) == ["leased_twice"]
    assert anomalies(tmp_path, *leased_again, day_later, is_clock_steady=False) == []


def test_each_firing_of_a_schedule_is_a_message_of_its_own(tmp_path: Path) -> None:
    fired = lease(1.1, value=FIRING), lease(2.1, value=FIRING, sequence=1, enqueued_ms=ENQUEUED_MS + 1_000)
    assert anomalies(tmp_path, *fired) == []
    assert anomalies(tmp_path, *fired, drained()) == ["lost", "lost"]
    history = history_of([tmp_path / "journal.jsonl"])
    assert sum(1 for one in history if isinstance(one, Put) and is_firing(one)) == 2
