"""`judge`: finds every anomaly in a history, by the definitions in `anomalies/`.

It must not know the origin of a history: simulated and real runs are judged alike. Time and memory are linear in the number of events,
except for the search for linearizability, which has its own bound. A million events take about ten seconds.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from sim.history import claims, losses, positions
from sim.history.anomalies import (
    aborted_read,
    duplicate,
    forked_claim,
    forked_entry,
    inconsistent_offset,
    lost_entry,
    lost_write,
    misanswered_claim,
    misordered_processing,
    misplaced_poll,
    never_claimed,
    never_entered,
    never_read,
    never_sent,
    nonlinearizable,
    nonmonotonic_poll,
    nonmonotonic_send,
    reordered_sends,
    repeated_processing,
    skipped_poll,
    stale_claim,
    unprocessed,
    unseen,
)
from sim.history.events import Event, encode_event, read_history
from sim.history.finding import Finding
from sim.history.tables import History, Status

FINDINGS_PER_ANOMALY_MAX: Final = 20
"""Maximum number of findings kept of each anomaly. The rest is counted. One fault often breaks thousands of records in the same way."""

ANOMALIES: Final = (
    lost_write.NAME,
    never_read.NAME,
    unseen.NAME,
    duplicate.NAME,
    inconsistent_offset.NAME,
    aborted_read.NAME,
    never_sent.NAME,
    nonmonotonic_poll.NAME,
    skipped_poll.NAME,
    misplaced_poll.NAME,
    reordered_sends.NAME,
    nonmonotonic_send.NAME,
    unprocessed.NAME,
    misordered_processing.NAME,
    repeated_processing.NAME,
    nonlinearizable.NAME,
    stale_claim.NAME,
    forked_claim.NAME,
    never_claimed.NAME,
    misanswered_claim.NAME,
    lost_entry.NAME,
    forked_entry.NAME,
    never_entered.NAME,
)


@dataclass(slots=True)
class Verdict:
    """The checker's result for a history."""

    event_count: int
    operation_count: int
    outcomes: dict[str, dict[Status, int]]
    """Operation → status → number of operations."""
    findings: list[Finding] = field(default_factory=list)
    """At most `FINDINGS_PER_ANOMALY_MAX` of each anomaly."""
    counts: dict[str, int] = field(default_factory=dict)
    """Anomaly → number of findings. Only anomalies that occur are listed."""
    undecided: list[str] = field(default_factory=list)
    """Topics with too many metadata operations to judge. The history does not pass then."""
    is_read_to_the_end: bool = False
    """Whether a `read_all` was complete. Without one, records missing at the end of a partition cannot be distinguished from unread ones."""
    evidence: dict[int, Event] = field(default_factory=dict)
    """The events that the findings name, by their position."""

    @property
    def is_clean(self) -> bool:
        """Whether there are no findings and nothing is undecided."""
        return not self.findings and not self.undecided

    def demand_clean(self) -> None:
        """Raise `AssertionError` with the report unless the history is clean."""
        if not self.is_clean:
            raise AssertionError(self.report())

    def report(self) -> str:
        """Return the findings with the events that prove them, followed by the summary."""
        lines: list[str] = []
        for found in self.findings:
            lines.append(f"{found.anomaly}: {found.text}")
            for at in found.evidence:
                event = self.evidence.get(at)
                lines.append(f"    {at + 1}: {'' if event is None else _shown(event)}")
        for name, count in self.counts.items():
            kept = sum(found.anomaly == name for found in self.findings)
            if count > kept:
                lines.append(f"{name}: {count - kept} more")
        lines.extend(f"undecided: {text}" for text in self.undecided)
        lines.append(self.summary())
        return "\n".join(lines)

    def summary(self) -> str:
        """Return a summary of one line."""
        found = ", ".join(f"{count} {name}" for name, count in self.counts.items()) or "nothing found"
        parts = []
        for operation, by_status in self.outcomes.items():
            parts.append(
                f"{sum(by_status.values())} {operation} ({', '.join(f'{n} {s}' for s, n in by_status.items())})"
            )
        if not self.is_read_to_the_end:
            parts.append("never read to the end, so lost ends were not looked for")
        return f"{found}: {self.event_count} events, {self.operation_count} operations judged: {'; '.join(parts)}"


EVIDENCE_CHARACTERS_MAX: Final = 400
"""Maximum length of one event in a report. A poll may hold thousands of records."""


def _shown(event: Event) -> str:
    text = encode_event(event).decode().rstrip("\n")
    return text if len(text) <= EVIDENCE_CHARACTERS_MAX else f"{text[:EVIDENCE_CHARACTERS_MAX]}…"


def judge(events: Sequence[Event], *, source: str = "history") -> Verdict:
    """Judge a history in memory.

    Args:
        events: The events, in the order in which they happened.
        source: Name of the history in errors.

    Raises:
        HistoryError: The events are not a history.
    """
    verdict = _judge(events, source)
    verdict.evidence = {at: events[at] for at in _wanted(verdict)}
    return verdict


def judge_files(paths: Sequence[Path | str]) -> Verdict:
    """Judge the files of one run, merged by time, as `judge` does. The files are read again for the events that prove findings.

    Raises:
        HistoryError: A line is not an event, or contradicts the events before it.
        OSError: A file cannot be read.
    """
    source = " + ".join(map(str, paths))
    verdict = _judge(read_history(paths), source)
    wanted = _wanted(verdict)
    if wanted:
        verdict.evidence = {at: event for at, event in enumerate(read_history(paths)) if at in wanted}
    return verdict


def _judge(events: Iterable[Event], source: str) -> Verdict:
    with _collector_paused():
        history = History.of(events, source)
        outcomes: dict[str, dict[Status, int]] = {}
        for (operation, status), count in sorted(history.outcomes.items()):
            outcomes.setdefault(operation, {})[status] = count
        verdict = Verdict(history.event_count, history.operation_count, outcomes)
        verdict.is_read_to_the_end = any(reading.is_complete for reading in history.read_alls)
        metadata, verdict.undecided = nonlinearizable.find(history)
        for name, found in _all_findings(history, metadata):
            kept = list(islice(found, FINDINGS_PER_ANOMALY_MAX))
            if kept:
                verdict.findings += kept
                verdict.counts[name] = len(kept) + sum(1 for _ in found)
    return verdict


def _all_findings(history: History, metadata: Iterable[Finding]) -> Iterator[tuple[str, Iterator[Finding]]]:
    walked = positions.walk(history)
    missing = losses.search(history, walked)
    yield lost_write.NAME, lost_write.find(missing)
    yield never_read.NAME, never_read.find(missing)
    yield unseen.NAME, unseen.find(missing)
    yield duplicate.NAME, duplicate.find(history)
    yield inconsistent_offset.NAME, inconsistent_offset.find(history)
    yield aborted_read.NAME, aborted_read.find(history)
    yield never_sent.NAME, never_sent.find(history)
    yield nonmonotonic_poll.NAME, nonmonotonic_poll.find(walked)
    yield skipped_poll.NAME, skipped_poll.find(walked)
    yield misplaced_poll.NAME, misplaced_poll.find(walked)
    yield reordered_sends.NAME, reordered_sends.find(history)
    yield nonmonotonic_send.NAME, nonmonotonic_send.find(history)
    yield unprocessed.NAME, unprocessed.find(history)
    yield misordered_processing.NAME, misordered_processing.find(history)
    yield repeated_processing.NAME, repeated_processing.find(history)
    yield nonlinearizable.NAME, iter(metadata)
    registers = claims.registers(history)
    yield stale_claim.NAME, stale_claim.find(registers)
    yield forked_claim.NAME, forked_claim.find(registers)
    yield never_claimed.NAME, never_claimed.find(registers)
    yield misanswered_claim.NAME, misanswered_claim.find(registers)
    yield lost_entry.NAME, lost_entry.find(history)
    yield forked_entry.NAME, forked_entry.find(history)
    yield never_entered.NAME, never_entered.find(history)


def _wanted(verdict: Verdict) -> set[int]:
    return {at for found in verdict.findings for at in found.evidence}


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector. There are no cycles here, and scanning millions of live objects repeatedly would take half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
