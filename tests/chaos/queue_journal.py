"""Journals of the clients of a queue topic, and the history that the checker judges.

Each process appends its own journal, line by line, so that a killed one leaves all that it knew. Times are of the monotonic clock, which
all processes of a machine share.

A client does not know the queue time at which a lease began. It lies between two bounds: queue time passes at most `SLEW` faster or slower than
the machine's time, a message is leased after it is enqueued and before it is delivered, and its leases begin in the order of their numbers.
Where clocks were made to jump, queue time may step forward, and only `QueueClock` bounds it. The history has the upper bound as the beginning
of a lease, and the lower bound plus the length of the lease as its end. So a message that is called early or leased twice was that, and a
small violation may stay unseen.

The firings of a schedule have the same value. The history gives each a value and a put of its own.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import IO, Any

from raftmq import Message, NewMessage, PutResult
from raftmq.errors import LeaseLostError, RaftMQError
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
    Sweep,
    Swept,
    Verb,
)
from tests.chaos.queue_clock import LATEST_MS, QueueClock

FIRING = "firing"
"""The value of every message of the schedule."""
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
        self.exhausted = 0
        """Number of messages that died when they were given back."""
        self.changed: Counter[Verb] = Counter()
        """Number of changes that took effect."""
        self.failed: dict[str, int] = {}
        """Number of failed calls, by error class."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def put_begins(self, process: str, message: NewMessage[bytes]) -> int:
        """Record a put before it is sent. Return its number."""
        return self._begin(
            "put", process, value=message.value.decode(), tenant=message.tenant or "", key=str(message.key or ""),
            id=message.id or "", delay_ms=int(message.delay_ms), expires_ms=int(message.expires_ms or 0),
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
        if isinstance(error, LeaseLostError) and verb is Verb.ACCEPT:
            self._end(call, answer=Answer.LOST.value)
        else:
            # a release whose answer was lost, and that is repeated after its session, is refused as a lost lease
            self._end(call)

    def release_ends(self, call: int, *, is_kept: bool) -> None:
        """Record that a message was given back, or died because it was its last attempt."""
        self.exhausted += not is_kept
        self._end(call, answer=(Answer.DONE if is_kept else Answer.DIED).value)

    def change_begins(self, process: str, verb: Verb, partition: int, sequence: int, delay_ms: int = 0) -> int:
        """Record a move or a cancel before it is sent. Return its number."""
        return self._begin(
            "change", process, verb=verb.value, partition=partition, sequence=sequence, delay_ms=delay_ms
        )  # fmt: skip

    def change_ends(self, call: int, verb: Verb, value: bytes, error: RaftMQError | None) -> None:
        """Record the answer to a change."""
        if error is None:
            if verb is Verb.CANCEL:
                self.finished.add(value.decode())
            self.changed[verb] += 1
            self._end(call, answer=Answer.DONE.value)
            return
        self._count(error)
        is_refused = error.outcome is ErrorOutcome.NOT_APPLIED
        self._end(call, **({"answer": Answer.OTHER.value} if is_refused else {}))

    def purge_begins(self, process: str, partitions: int, tenant: str) -> list[int]:
        """Record a purge of a tenant's messages before it is sent. Return its number in each partition."""
        return [self._begin("purge", process, partition=one, tenant=tenant) for one in range(partitions)]

    def purge_ends(self, calls: Iterable[int], error: RaftMQError | None) -> None:
        """Record that a purge is over in all partitions, or that it is unknown in which."""
        if error is not None:
            self._count(error)
        for call in calls:
            self._end(call, is_over=error is None)

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


def history_of(paths: Iterable[Path], *, is_clock_steady: bool = True) -> list[Operation]:
    """Return the operations of all journals.

    Args:
        paths: The journals.
        is_clock_steady: Whether queue time ran like the machine's. Otherwise it may have stepped forward.
    """
    journals = [_lines_of(path) for path in paths]
    deliveries = [
        _Delivery(_renamed(line), lines[0]["at"]) for lines in journals for line in lines if line["what"] == "leased"
    ]
    puts = _located(_puts_of(journals), deliveries)
    by_partition = defaultdict[int, list[Put]](list)
    for put in puts.values():
        by_partition[put.partition].append(put)
    times = _Times(puts, {number: QueueClock(some) for number, some in by_partition.items()}, is_clock_steady)
    return [*puts.values(), *_leases_of(deliveries, times), *_others_of(journals, times)]


def _lines_of(path: Path) -> list[Line]:
    """Return the lines of a journal. The last one of a killed process may be torn."""
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _renamed(line: Line) -> Line:
    """Return a delivery with a value that no other message has."""
    if line["value"] != FIRING:
        return line
    return line | {"value": f"{FIRING} {line['partition']}/{line['sequence']}"}


def is_firing(put: Put) -> bool:
    """Return whether the history made this put for a firing of the schedule."""
    return put.process == FIRING


# --------------------------------------------------------------------------------------------------------------- puts


def _puts_of(journals: Iterable[Sequence[Line]]) -> dict[str, Put]:
    """Return the puts by the values of their messages."""
    found: dict[str, Put] = {}
    for lines in journals:
        answers = _answers_in(lines)
        found |= {line["value"]: _put_of(line, answers.get(line["call"])) for line in lines if line["what"] == "put"}
    return found


def _answers_in(lines: Iterable[Line]) -> dict[int, Line]:
    return {line["call"]: line for line in lines if line["what"] == "answer"}


def _ended(answer: Line | None) -> float:
    return inf if answer is None else float(answer["at"])


def _put_of(line: Line, answer: Line | None) -> Put:
    message = SentMessage(
        line["value"].encode(), line["tenant"], line["key"], line["id"], False, line["delay_ms"],
        may_expire=bool(line["expires_ms"]), expires_ms=line["expires_ms"],
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


def _located(puts: Mapping[str, Put], deliveries: Sequence[_Delivery]) -> dict[str, Put]:
    """Return the puts with the facts that only deliveries tell: the partition of one without an answer, its queue time, and firings."""
    found = dict(puts)
    for line in (delivery.line for delivery in deliveries):
        value = line["value"]
        put = found.get(value)
        if put is not None:
            partition = line["partition"] if put.partition < 0 else put.partition
            found[value] = replace(put, partition=partition, append_ms=line["enqueued_ms"])
        elif value.startswith(FIRING):
            fired = SentMessage(value.encode())
            found[value] = Put(
                FIRING, line["partition"], 0.0, inf, Outcome.OK, 0, (fired,), line["sequence"], line["enqueued_ms"]
            )
    return found


# --------------------------------------------------------------------------------------------------------------- times


@dataclass(frozen=True, slots=True)
class _Times:
    """The facts about queue time."""

    puts: Mapping[str, Put]
    clocks: Mapping[int, QueueClock]
    is_steady: bool

    def at_least(self, partition: int, moment: float) -> int:
        """Return a queue time that a partition had reached at a moment. 0: nothing is known."""
        clock = self.clocks.get(partition)
        return 0 if clock is None else clock.at_least(moment)

    def leased_at_most(self, line: Line) -> int:
        """Return the latest queue time at which a delivered lease began."""
        put, clock = self.puts.get(line["value"]), self.clocks.get(line["partition"])
        at_most = LATEST_MS if clock is None else clock.at_most(line["at"])
        if not self.is_steady or put is None or is_firing(put):
            return at_most
        passed = (line["at"] - put.began) * 1000 * SLEW + TOLERANCE_MS
        return min(at_most, int(line["enqueued_ms"] + passed))

    def leased_at_least(self, delivery: _Delivery) -> int:
        """Return the earliest queue time at which a lease began: after the enqueuing, and after the start of its client."""
        line = delivery.line
        put = self.puts.get(line["value"])
        at_least = max(int(line["enqueued_ms"]), self.at_least(line["partition"], delivery.began_at))
        if not self.is_steady or put is None or put.ended == inf:
            return at_least
        passed = (delivery.began_at - put.ended) * 1000 / SLEW - TOLERANCE_MS
        return max(at_least, int(line["enqueued_ms"] + passed))


def _leases_of(deliveries: Sequence[_Delivery], times: _Times) -> list[Operation]:
    """Return the leases, with the bounds of their queue times."""
    by_place: dict[tuple[int, int], list[_Delivery]] = {}
    for delivery in deliveries:
        by_place.setdefault((delivery.line["partition"], delivery.line["sequence"]), []).append(delivery)
    found: list[Operation] = []
    for some in by_place.values():
        some.sort(key=lambda delivery: delivery.line["number"])
        begun_at = _begun_at_latest(some, times)
        at_least = 0
        for delivery, at_most in zip(some, begun_at, strict=True):
            line = delivery.line
            at_least = max(at_least, times.leased_at_least(delivery))
            end = at_least + line["lease_ms"]
            leased = LeasedMessage(line["sequence"], line["number"], line["value"].encode())
            found.append(
                LeaseTaken(
                    line["process"], line["partition"], delivery.began_at, line["at"], Outcome.OK, at_least, (leased,),
                    end - at_most, end,
                )
            )  # fmt: skip
    return found


def _begun_at_latest(some: Sequence[_Delivery], times: _Times) -> list[int]:
    """Return the latest queue time at which each of a message's leases began: one with a higher number began later."""
    latest: list[int] = []
    for delivery in reversed(some):
        latest.append(min([times.leased_at_most(delivery.line), *latest[-1:]]))
    return latest[::-1]


# --------------------------------------------------------------------------------------------------------------- others


def _others_of(journals: Iterable[Sequence[Line]], times: _Times) -> Iterator[Operation]:
    for lines in journals:
        answers = _answers_in(lines)
        for line in lines:
            answer = answers.get(line.get("call"))
            match line["what"]:
                case "settle":
                    yield _settlement_of(line, answer, times)
                case "change":
                    yield _change_of(line, answer, times)
                case "purge":
                    yield _purge_of(line, answer)
                case "redriven":
                    yield _redriving_of(line)
                case "drained":
                    yield _end_of(line)
                case _:
                    pass


def _settlement_of(line: Line, answer: Line | None, times: _Times) -> Settlement:
    said = None if answer is None else answer.get("answer")
    settled = SettledMessage(
        Verb(line["verb"]), line["sequence"], line["number"], None if said is None else Answer(said), line["delay_ms"]
    )
    outcome = Outcome.UNKNOWN if said is None else Outcome.OK
    ended = inf if said is None else _ended(answer)
    before_ms = times.at_least(line["partition"], line["at"])
    return Settlement(line["process"], line["partition"], line["at"], ended, outcome, before_ms, (settled,))


def _change_of(line: Line, answer: Line | None, times: _Times) -> Alteration:
    said = None if answer is None else answer.get("answer")
    changed = ChangedMessage(
        Verb(line["verb"]), line["sequence"], None if said is None else Answer(said), 0, line["delay_ms"]
    )
    outcome = Outcome.UNKNOWN if said is None else Outcome.OK
    ended = inf if said is None else _ended(answer)
    before_ms = times.at_least(line["partition"], line["at"])
    return Alteration(line["process"], line["partition"], line["at"], ended, outcome, before_ms, (changed,))


def _purge_of(line: Line, answer: Line | None) -> Swept:
    is_over = answer is not None and answer["is_over"]
    outcome, ended = (Outcome.OK, _ended(answer)) if is_over else (Outcome.UNKNOWN, inf)
    return Swept(line["process"], line["partition"], line["at"], ended, outcome, 0, Sweep.PURGE, line["tenant"])


def _redriving_of(line: Line) -> Alteration:
    changed = ChangedMessage(Verb.REDRIVE, line["sequence"], Answer.DONE)
    return Alteration(line["process"], line["partition"], line["at"], inf, Outcome.OK, 0, (changed,))


def _end_of(line: Line) -> Drained:
    left = tuple(line["left"].items())
    return Drained(line["process"], line["partition"], line["at"], inf, Outcome.OK, 0, left)
