"""Journals of a queue's clients become a history in which broken promises are found, and times that a client cannot know break none."""

from __future__ import annotations

import json
from pathlib import Path

from sim.history.queues.checker import judge_queues
from tests.chaos.queue_journal import Line, history_of
from tests.chaos.queue_run import ids_enqueued_twice

ENQUEUED_MS = 1_000_000
LEASE_MS = 1_500


def put(at: float, value: str = "a", *, call: int = 1, sequence: int = 0, **fields: object) -> list[Line]:
    base = {"what": "put", "process": "p", "at": at, "call": call, "value": value}
    asked = base | {"tenant": "", "key": "", "id": "", "delay_ms": 0} | fields
    answer = {"what": "answer", "at": at + 0.01, "call": call, "partition": 0, "sequence": sequence}
    return [asked, answer | {"is_deduplicated": False}]


def lease(at: float, number: int = 1, value: str = "a", sequence: int = 0) -> list[Line]:
    base = {"what": "leased", "process": "w", "at": at, "partition": 0, "sequence": sequence, "number": number}
    return [base | {"value": value, "enqueued_ms": ENQUEUED_MS, "lease_ms": LEASE_MS}]


def settle(at: float, verb: str, number: int = 1, *, call: int = 9, answer: str | None = "done") -> list[Line]:
    base = {"what": "settle", "process": "w", "at": at, "call": call, "verb": verb, "delay_ms": 0}
    asked = base | {"partition": 0, "sequence": 0, "number": number}
    return [asked, {"what": "answer", "at": at + 0.01, "call": call} | ({"answer": answer} if answer else {})]


def anomalies(folder: Path, *parts: list[Line]) -> list[str]:
    lines = [line for part in parts for line in part]
    path = folder / "journal.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"what": "torn')
    return sorted(one.anomaly for one in judge_queues(history_of([path]), {0}))


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
