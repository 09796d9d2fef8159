"""Journals of the clients of a queue topic, and the history that the checker judges.

Each process appends its own journal, line by line, so that a killed one leaves all that it knew. Times are of the monotonic clock, which
all processes of a machine share.

A client does not know the queue time at which a lease began. It lies between two bounds: queue time passes at most `SLEW` faster or slower than
the machine's time, a message is leased after it is enqueued and before it is delivered, and its leases begin in the order of their numbers.
The history has the upper bound as the beginning of a lease, and the lower bound plus the length of the lease as its end. So a message that
is called early or leased twice was that, and a small violation may stay unseen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import IO, Any

from raftmq import Message, NewMessage, PutResult
from raftmq.errors import AttemptsExhaustedError, LeaseLostError, RaftMQError
from raftmq.errors import Outcome as ErrorOutcome

from sim.history.queues.operations import (
    Alteration,
    Answer,
    ChangedMessage,
    Drained,
    LeasedMessage,
    LeaseTaken,
    Operation,
    Outcome,
    Put,
    SentMessage,
    SettledMessage,
    Settlement,
    Verb,
)

SLEW = 1.05
"""The most that queue time may run faster or slower than the machine's."""
TOLERANCE_MS = 300
"""A queue clock that lags behind the others' steps forward when its broker starts again."""

Line = dict[str, Any]
"""A line of a journal, as JSON has it."""


class Journal:
    """Writes the journal of one process."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a", buffering=1)
        self._calls = 0
        self.finished: set[str] = set()
        """The values that were accepted or given up, as far as anybody of this process knows."""
        self.acknowledged: set[str] = set()
        """The values that were enqueued, repeats of an id left out."""
        self.failed: dict[str, int] = {}
        """Number of failed calls, by error class."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def put_begins(self, process: str, message: NewMessage[bytes]) -> int:
        """Record a put before it is sent. Return its number."""
        return self._begin(
            "put", process, value=message.value.decode(), tenant=message.tenant or "", key=str(message.key or ""),
            id=message.id or "", delay_ms=int(message.delay_ms),
        )  # fmt: skip

    def put_ends(self, call: int, value: bytes, result: PutResult | RaftMQError) -> None:
        """Record the outcome of a put."""
        if isinstance(result, RaftMQError):
            self._count(result)
            self._end(call, is_failed=result.outcome is ErrorOutcome.NOT_APPLIED)
            return
        if not result.is_deduplicated:
            self.acknowledged.add(value.decode())
        self._end(
            call, partition=result.partition, sequence=result.sequence, is_deduplicated=result.is_deduplicated
        )  # fmt: skip

    def leased(self, process: str, lease_ms: int, message: Message[bytes]) -> None:
        """Record a message that was delivered."""
        self._write(
            "leased", process, partition=message.partition, sequence=message.sequence, number=number_of(message),
            value=message.value.decode(), enqueued_ms=message.enqueued_ms, lease_ms=lease_ms,
        )  # fmt: skip

    def settlement_begins(self, process: str, verb: Verb, message: Message[bytes], delay_ms: int = 0) -> int:
        """Record a settlement before it is sent. Return its number."""
        return self._begin(
            "settle", process, verb=verb.value, partition=message.partition, sequence=message.sequence,
            number=number_of(message), delay_ms=delay_ms,
        )  # fmt: skip

    def settlement_ends(self, call: int, verb: Verb, value: bytes, error: RaftMQError | None) -> None:
        """Record the answer to a settlement."""
        if error is None:
            if verb in (Verb.ACCEPT, Verb.REJECT):
                self.finished.add(value.decode())
            self._end(call, answer=Answer.DONE.value)
            return
        self._count(error)
        if isinstance(error, AttemptsExhaustedError):
            self._end(call, answer=Answer.DIED.value)
        elif isinstance(error, LeaseLostError) and verb is Verb.ACCEPT:
            self._end(call, answer=Answer.LOST.value)
        else:
            # a release whose answer was lost, and that is repeated after its session, is refused as a lost lease
            self._end(call)

    def drained(self, process: str, partition: int, left: dict[str, int]) -> None:
        """Record the rest of a partition at the end."""
        self._write("drained", process, partition=partition, left=left)

    def redriven(self, process: str, partition: int, sequence: int) -> None:
        """Record that a dead message becomes ready again, before it does."""
        self._write("redriven", process, partition=partition, sequence=sequence)

    def _begin(self, what: str, process: str, **more: object) -> int:
        self._calls += 1
        self._write(what, process, call=self._calls, **more)
        return self._calls

    def _end(self, call: int, **more: object) -> None:
        self._write("answer", "", call=call, **more)

    def _write(self, what: str, process: str, **more: object) -> None:
        self._file.write(json.dumps({"what": what, "process": process, "at": time.monotonic(), **more}) + "\n")

    def _count(self, error: RaftMQError) -> None:
        name = type(error).__name__
        self.failed[name] = self.failed.get(name, 0) + 1


def number_of(message: Message[bytes]) -> int:
    """Return the lease number, which the SDK keeps to itself."""
    assert message._lease is not None
    return message._lease.lease_number


# --------------------------------------------------------------------------------------------------------------- histories


@dataclass(frozen=True, slots=True)
class _Delivery:
    """A lease as its client saw it."""

    line: Line
    began_at: float
    """The start of its process: the message was not leased for it before."""


def history_of(paths: Iterable[Path]) -> list[Operation]:
    """Return the operations of all journals."""
    puts: dict[str, Put] = {}
    others: list[Operation] = []
    deliveries: list[_Delivery] = []
    for path in paths:
        lines = _lines_of(path)
        answers = {line["call"]: line for line in lines if line["what"] == "answer"}
        for line in lines:
            answer = answers.get(line.get("call"))
            if line["what"] == "put":
                puts[line["value"]] = _put_of(line, answer)
            elif line["what"] == "settle":
                others.append(_settlement_of(line, answer))
            elif line["what"] == "leased":
                deliveries.append(_Delivery(line, lines[0]["at"]))
            elif line["what"] == "redriven":
                others.append(_redriving_of(line))
            elif line["what"] == "drained":
                others.append(_end_of(line))
    return [*_located(puts, deliveries).values(), *_leases_of(deliveries, puts), *others]


def _lines_of(path: Path) -> list[Line]:
    """Return the lines of a journal. The last one of a killed process may be torn."""
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _ended(answer: Line | None) -> float:
    return inf if answer is None else float(answer["at"])


def _put_of(line: Line, answer: Line | None) -> Put:
    message = SentMessage(
        line["value"].encode(), line["tenant"], line["key"], line["id"], False, line["delay_ms"]
    )  # fmt: skip
    if answer is None or "sequence" not in answer:
        is_failed = answer is not None and answer["is_failed"]
        outcome, ended = (Outcome.FAILED, _ended(answer)) if is_failed else (Outcome.UNKNOWN, inf)
        return Put(line["process"], -1, line["at"], ended, outcome, 0, (message,))
    repeated = (0,) if answer["is_deduplicated"] else ()
    sequence = -1 if repeated else answer["sequence"]
    return Put(
        line["process"], answer["partition"], line["at"], _ended(answer), Outcome.OK, 0, (message,), sequence,
        repeated=repeated,
    )  # fmt: skip


def _located(puts: dict[str, Put], deliveries: Sequence[_Delivery]) -> dict[str, Put]:
    """Return the puts with the facts that only deliveries tell: the partition of one without an answer, and its queue time."""
    found = dict(puts)
    for line in (delivery.line for delivery in deliveries):
        put = found.get(line["value"])
        if put is not None:
            partition = line["partition"] if put.partition < 0 else put.partition
            found[line["value"]] = replace(put, partition=partition, append_ms=line["enqueued_ms"])
    return found


def _settlement_of(line: Line, answer: Line | None) -> Settlement:
    said = None if answer is None else answer.get("answer")
    settled = SettledMessage(
        Verb(line["verb"]), line["sequence"], line["number"], None if said is None else Answer(said), line["delay_ms"]
    )
    outcome = Outcome.UNKNOWN if said is None else Outcome.OK
    ended = inf if said is None else _ended(answer)
    return Settlement(line["process"], line["partition"], line["at"], ended, outcome, 0, (settled,))


def _redriving_of(line: Line) -> Alteration:
    changed = ChangedMessage(Verb.REDRIVE, line["sequence"], Answer.DONE)
    return Alteration(line["process"], line["partition"], line["at"], inf, Outcome.OK, 0, (changed,))


def _end_of(line: Line) -> Drained:
    left = tuple(line["left"].items())
    return Drained(line["process"], line["partition"], line["at"], inf, Outcome.OK, 0, left)


def _leases_of(deliveries: Sequence[_Delivery], puts: dict[str, Put]) -> list[Operation]:
    """Return the leases, with the bounds of their queue times."""
    by_place: dict[tuple[int, int], list[_Delivery]] = {}
    for delivery in deliveries:
        by_place.setdefault((delivery.line["partition"], delivery.line["sequence"]), []).append(delivery)
    found: list[Operation] = []
    for some in by_place.values():
        some.sort(key=lambda delivery: delivery.line["number"])
        begun_at = _begun_at_latest(some, puts)
        at_least = 0
        for delivery, at_most in zip(some, begun_at, strict=True):
            line = delivery.line
            at_least = max(at_least, _begun_at_least(delivery, puts))
            end = at_least + line["lease_ms"]
            leased = LeasedMessage(line["sequence"], line["number"], line["value"].encode())
            found.append(
                LeaseTaken(
                    line["process"], line["partition"], delivery.began_at, line["at"], Outcome.OK, 0, (leased,),
                    end - at_most, end,
                )
            )  # fmt: skip
    return found


def _begun_at_latest(some: Sequence[_Delivery], puts: dict[str, Put]) -> list[int]:
    """Return the latest queue time at which each of a message's leases began: one with a higher number began later."""
    latest: list[int] = []
    for delivery in reversed(some):
        line, put = delivery.line, puts.get(delivery.line["value"])
        passed = 0.0 if put is None else (line["at"] - put.began) * 1000 * SLEW
        at_most = line["enqueued_ms"] + int(passed) + TOLERANCE_MS
        latest.append(min([at_most, *latest[-1:]]))
    return latest[::-1]


def _begun_at_least(delivery: _Delivery, puts: dict[str, Put]) -> int:
    """Return the earliest queue time at which a lease began: after the enqueuing, and after the start of its client."""
    line, put = delivery.line, puts.get(delivery.line["value"])
    if put is None or put.ended == inf:
        return int(line["enqueued_ms"])
    return int(line["enqueued_ms"] + max(0.0, (delivery.began_at - put.ended) * 1000 / SLEW - TOLERANCE_MS))
