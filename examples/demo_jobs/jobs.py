"""Choose the jobs of the second act: to help the passengers of flights that were late, cancelled or diverted. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

LATE_MINUTES = 15
CANCELLED_MINUTES = 24 * 60
"""The delay that a cancelled flight counts as. It is longer than every real one."""
BACKLOG_MAX = 3_000
QUIET_JOBS_MAX = 60
"""Jobs of the noisy carrier, and of each other one."""

Trouble = Literal["none", "late", "cancelled", "diverted"]


class Flight(msgspec.Struct, frozen=True):
    """The fields of a flight that the jobs need."""

    carrier: str
    flight: int
    dep_time: int | None
    """None: cancelled."""
    dep_delay: int | None
    arr_delay: int | None
    """None, with a departure: diverted."""

    @property
    def trouble(self) -> Trouble:
        """Return the reason for which its passengers need help."""
        if self.dep_time is None:
            return "cancelled"
        if self.arr_delay is None:
            return "diverted"
        return "late" if (self.dep_delay or 0) >= LATE_MINUTES else "none"


@dataclass(frozen=True, slots=True)
class Job:
    """One message of the queue."""

    row: int
    """The flight's row in the source, which is also the message's id."""
    value: bytes
    """The flight as a JSON object."""
    carrier: str
    """The message's tenant."""
    trouble: Trouble
    delay_minutes: int
    """The most delayed flight of a carrier comes first: the message's priority is the negative delay."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The jobs of the noisy carrier, which are put first, and those of the quiet ones, which come while there is a backlog."""

    noisy_carrier: str
    backlog: list[Job]
    quiet: list[Job]

    @property
    def jobs(self) -> list[Job]:
        """Return all jobs."""
        return self.backlog + self.quiet

    @property
    def total(self) -> int:
        """Return the number of all jobs."""
        return len(self.backlog) + len(self.quiet)


_decode = msgspec.json.Decoder(Flight).decode


def read_flight(value: bytes) -> Flight:
    """Return the flight in a job's value."""
    return _decode(value)


def plan_jobs(values: Iterable[bytes]) -> JobPlan:
    """Choose jobs among flights. The carrier with the most is the noisy one."""
    jobs: list[Job] = []
    for row, value in enumerate(values):
        flight = read_flight(value)
        trouble = flight.trouble
        if trouble != "none":
            minutes = CANCELLED_MINUTES if trouble == "cancelled" else flight.dep_delay or 0
            jobs.append(Job(row, value, flight.carrier, trouble, minutes))
    noisy = Counter(job.carrier for job in jobs).most_common(1)[0][0]
    taken: Counter[str] = Counter()
    plan = JobPlan(noisy, [], [])
    for job in jobs:
        is_noisy = job.carrier == noisy
        if taken[job.carrier] < (BACKLOG_MAX if is_noisy else QUIET_JOBS_MAX):
            taken[job.carrier] += 1
            (plan.backlog if is_noisy else plan.quiet).append(job)
    return plan
