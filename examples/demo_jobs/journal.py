"""Keep the events of all jobs, and verify them. Pure, so that each kind of damage that it must find has a test.

By the rules of leases each job ends exactly once: one settlement as done, or as dead, is accepted. A job whose worker or broker was killed
is delivered again, as the next attempt. A settlement that is refused because the lease has ended has no effect.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from examples.demo_jobs.jobs import Job, JobPlan, Trouble
from examples.demo_jobs.worker import Event, EventKind

EXPECTED_REASONS: dict[Trouble, str | None] = {"late": None, "cancelled": "rejected", "diverted": "exhausted"}
"""The reason for which a job must be dead at the end, or None for a job that must be done."""


@dataclass(slots=True)
class JobHistory:
    """The events of one job."""

    counts: Counter[EventKind] = field(default_factory=Counter)
    first_begun: float = 0.0
    """Wall-clock time of the first beginning that was reported. 0: there was none."""
    first_attempt: int = 0
    """The number of that attempt. Not 1 if the message was on its way to a process that was killed."""


class Journal:
    """Collects the workers' events."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.histories: dict[int, JobHistory] = {job.row: JobHistory() for job in jobs}
        self.ended = 0
        """Number of jobs that a worker has reported as done or dead."""
        self.held: dict[int, int] = {}
        """The row of each job whose handler hangs → the number of its attempts so far that reached a worker."""
        self.strays: list[Event] = []
        """Events of messages that are no jobs."""

    def add(self, event: Event) -> None:
        """Record an event."""
        history = self.histories.get(event.row)
        if history is None:
            self.strays.append(event)
            return
        history.counts[event.kind] += 1
        if event.kind == "begun":
            if not history.first_attempt:
                history.first_begun, history.first_attempt = event.seconds, event.attempt
        elif event.kind == "held":
            self.held[event.row] = history.counts["begun"]
        elif event.kind in ("done", "dead") and history.counts["done"] + history.counts["dead"] == 1:
            self.ended += 1

    def is_begun_again(self, row: int) -> bool:
        """Return whether a job whose handler hung was delivered to another worker."""
        return self.histories[row].counts["begun"] > self.held[row]


@dataclass(frozen=True, slots=True)
class Remains:
    """Describes the messages that the queue holds at the end."""

    dead_reasons: dict[str, str]
    """The id of each dead message, and the reason."""
    unfinished: int = 0
    """Messages that are neither done nor dead."""


@dataclass(slots=True)
class JobVerification:
    """The outcome of all jobs, and one sentence for each problem."""

    done: int = 0
    rejected: int = 0
    exhausted: int = 0
    """Dead jobs: those that their handlers rejected, and those whose attempts were used up."""
    retried: int = 0
    """Attempts that failed, after which the message was given back."""
    lost: int = 0
    """Settlements that were refused because the lease had ended."""
    problems: list[str] = field(default_factory=list)

    @property
    def ended(self) -> int:
        """Return the number of jobs that ended correctly."""
        return self.done + self.rejected + self.exhausted


def verify_jobs(plan: JobPlan, journal: Journal, remains: Remains) -> JobVerification:
    """Check the events of every job, the dead messages, and the order of the backlog."""
    outcome = JobVerification()
    for job in plan.jobs:
        history = journal.histories[job.row]
        reason = remains.dead_reasons.get(str(job.row))
        outcome.retried += history.counts["retried"]
        outcome.lost += history.counts["lost"]
        problem = check_job(job, history, reason)
        if not problem and reason is None and job.row in journal.held and not journal.is_begun_again(job.row):
            problem = "job of the killed worker that was not delivered again"
        if problem:
            events = ", ".join(f"{kind} {count}" for kind, count in history.counts.items())
            outcome.problems.append(
                f"{problem}: {job.trouble} flight in row {job.row}, {job.carrier}: {events}; {reason}"
            )
        elif reason is None:
            outcome.done += 1
        elif reason == "rejected":
            outcome.rejected += 1
        else:
            outcome.exhausted += 1
    outcome.problems += [f"unknown message: {event}" for event in journal.strays]
    outcome.problems += [f"{remains.unfinished} messages are not finished"] * bool(remains.unfinished)
    outcome.problems += check_priority(plan.backlog, journal)
    return outcome


def check_job(job: Job, history: JobHistory, dead_reason: str | None) -> str | None:
    """Return the problem with one job, or None."""
    done, dead = history.counts["done"], history.counts["dead"]
    if not done and dead_reason is None and not history.counts["unknown"]:  # an unanswered settlement may have ended it
        return "lost job"
    if done + dead > 1 or (done and dead_reason is not None):
        return "job that ended more than once"
    if dead_reason != EXPECTED_REASONS[job.trouble]:
        return "job with the wrong end"
    return None


def check_priority(backlog: Sequence[Job], journal: Journal) -> list[str]:
    """Check that the most delayed tenth of a backlog was begun before the least delayed tenth.

    Only first attempts count: a message that was on its way to a killed process is delivered again when its lease has ended.
    """
    ordered = sorted(backlog, key=lambda job: job.delay_minutes)
    tenth = len(ordered) // 10
    least, most = (
        [history.first_begun for job in part if (history := journal.histories[job.row]).first_attempt == 1]
        for part in (ordered[:tenth], ordered[-tenth:])
    )
    is_kept = not least or not most or max(most) < min(least)
    return [] if is_kept else ["priority broken: a little delayed flight was begun before a much delayed one"]
