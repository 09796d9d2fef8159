"""The demo's second act: its jobs, and each kind of damage that its verification must find."""

import asyncio

import msgspec
import pytest

from examples.demo_jobs.act_lines import act_lines
from examples.demo_jobs.jobs import BACKLOG_MAX, QUIET_JOBS_MAX, JobPlan, plan_jobs
from examples.demo_jobs.journal import Journal, Remains, verify_jobs
from examples.demo_jobs.second_act import ActReport
from examples.demo_jobs.worker import Event, EventKind
from examples.demo_jobs.worker_process import within

LATE = {"dep_time": 600, "dep_delay": 20, "arr_delay": 5}
CANCELLED = {"dep_time": None, "dep_delay": None, "arr_delay": None}
DIVERTED = {"dep_time": 600, "dep_delay": -3, "arr_delay": None}
PUNCTUAL = {"dep_time": 600, "dep_delay": 14, "arr_delay": 90}


def flight(carrier: str, fields: dict[str, int | None]) -> bytes:
    return msgspec.json.encode({"carrier": carrier, "flight": 11} | fields)


@pytest.fixture
def plan() -> JobPlan:
    flights = [("EV", LATE)] * 3 + [("HA", CANCELLED), ("HA", DIVERTED), ("HA", PUNCTUAL)]
    return plan_jobs(flight(*one) for one in flights)


def journal_of(plan: JobPlan, *events: tuple[EventKind, int]) -> Journal:
    journal = Journal(plan.jobs)
    for kind, row in events:
        journal.add(Event(kind, row, 1, 50.0 + row))
    return journal


GOOD: list[tuple[EventKind, int]] = [
    *[("begun", row) for row in range(5)],
    *[("done", row) for row in range(3)],
    ("dead", 3),
    ("retried", 4),
    ("begun", 4),
    ("dead", 4),
]
REMAINS = Remains({"3": "rejected", "4": "exhausted"})


def problems(plan: JobPlan, events: list[tuple[EventKind, int]], remains: Remains = REMAINS) -> list[str]:
    return [problem.partition(":")[0] for problem in verify_jobs(plan, journal_of(plan, *events), remains).problems]


def test_each_late_cancelled_or_diverted_flight_is_a_job(plan: JobPlan) -> None:
    assert plan.noisy_carrier == "EV"
    assert [(job.row, job.trouble, job.delay_minutes) for job in plan.jobs] == [
        (0, "late", 20),
        (1, "late", 20),
        (2, "late", 20),
        (3, "cancelled", 1440),
        (4, "diverted", -3),
    ]


def test_the_jobs_of_each_carrier_are_bounded() -> None:
    values = [flight("EV", LATE)] * (BACKLOG_MAX + 1) + [flight("HA", LATE)] * (QUIET_JOBS_MAX + 1)
    bounded = plan_jobs(values)
    assert (len(bounded.backlog), len(bounded.quiet)) == (BACKLOG_MAX, QUIET_JOBS_MAX)


def test_jobs_that_ended_as_they_must_are_counted(plan: JobPlan) -> None:
    journal = journal_of(plan, *GOOD)
    checked = verify_jobs(plan, journal, REMAINS)
    assert (checked.done, checked.rejected, checked.exhausted, checked.retried) == (3, 1, 1, 1)
    assert checked.problems == []
    assert journal.ended == plan.total


def test_an_unanswered_settlement_may_have_ended_a_job(plan: JobPlan) -> None:
    assert problems(plan, [event for event in GOOD if event != ("done", 2)] + [("unknown", 2)]) == []


def test_a_lost_job_is_found(plan: JobPlan) -> None:
    assert problems(plan, [event for event in GOOD if event != ("done", 2)]) == ["lost job"]


def test_a_job_that_was_done_twice_is_found(plan: JobPlan) -> None:
    assert problems(plan, [*GOOD, ("done", 2)]) == ["job that ended more than once"]


def test_a_job_that_was_rejected_twice_is_found(plan: JobPlan) -> None:
    assert problems(plan, [*GOOD, ("dead", 3)]) == ["job that ended more than once"]


@pytest.mark.parametrize("row", [2, 3])
def test_a_job_that_workers_ended_as_done_and_as_dead_is_found(plan: JobPlan, row: int) -> None:
    first: EventKind = "done" if row == 3 else "dead"
    remains = Remains({number: reason for number, reason in REMAINS.dead_reasons.items() if number != str(row)})
    assert problems(plan, [*GOOD, (first, row)], remains) == ["job that ended more than once"]


def test_a_job_that_is_done_and_dead_is_found(plan: JobPlan) -> None:
    both = Remains({**REMAINS.dead_reasons, "0": "exhausted"})
    assert problems(plan, GOOD, both) == ["job that ended more than once"]


@pytest.mark.parametrize("reasons", [{"3": "exhausted"}, {"3": "rejected", "4": "rejected"}], ids=["first", "second"])
def test_a_job_that_died_for_the_wrong_reason_is_found(plan: JobPlan, reasons: dict[str, str]) -> None:
    assert "job with the wrong end" in problems(plan, GOOD, Remains(reasons))


def test_a_job_of_the_killed_worker_that_nobody_began_again_is_found(plan: JobPlan) -> None:
    assert problems(plan, [*GOOD, ("held", 1)]) == ["job of the killed worker that was not delivered again"]
    assert problems(plan, [*GOOD, ("held", 1), ("begun", 1)]) == []


def test_a_job_that_the_killed_worker_had_at_its_last_attempt_is_dead(plan: JobPlan) -> None:
    unreported = GOOD[:-1]
    journal = journal_of(plan, *unreported, ("held", 4))
    assert verify_jobs(plan, journal, REMAINS).problems == []
    assert not journal.is_begun_again(4)
    assert journal.ended == plan.total - 1


def test_a_message_that_is_no_job_is_found(plan: JobPlan) -> None:
    assert problems(plan, [*GOOD, ("done", 99)]) == ["unknown message"]


def test_messages_that_are_left_are_found(plan: JobPlan) -> None:
    assert problems(plan, GOOD, Remains(REMAINS.dead_reasons, 2)) == ["2 messages are not finished"]


@pytest.mark.parametrize(("first_delay", "expected"), [(90, 0), (16, 1)], ids=["kept", "broken"])
def test_a_broken_priority_is_found(first_delay: int, expected: int) -> None:
    delays = [first_delay] * 10 + [106 - first_delay] * 10
    plan = plan_jobs(flight("EV", LATE | {"dep_delay": delay}) for delay in delays)
    events: list[tuple[EventKind, int]] = [(kind, row) for row in range(20) for kind in ("begun", "done")]
    found = problems(plan, events, Remains({}))
    assert found == ["priority broken"] * expected


def test_the_report_names_the_problems(plan: JobPlan) -> None:
    journal = journal_of(plan, *GOOD, ("done", 2))
    report = ActReport(put_at={job.row: 10.0 for job in plan.jobs})
    lines = act_lines(plan, report, journal, verify_jobs(plan, journal, REMAINS))
    assert lines[1] == "jobs verified      4 of 5, 1 PROBLEMS"
    assert lines[-1].startswith("PROBLEM job that ended more than once: late flight in row 2, EV: begun 1, done 2")


def test_the_report_shows_the_waits_of_the_noisy_and_the_quiet(plan: JobPlan) -> None:
    journal = journal_of(plan, *GOOD)
    report = ActReport(put_at={0: 10.0, 1: 10.0, 2: 10.0, 3: 52.99, 4: 53.0})
    lines = act_lines(plan, report, journal, verify_jobs(plan, journal, REMAINS))
    assert "noisy carrier      EV put 3 jobs together, which waited 41.0 s" in lines
    assert "quiet carriers     1 others put 2 jobs in between, which waited 505 ms, at most 1.0 s" in lines


async def test_a_worker_that_does_not_start_in_time_is_named() -> None:
    with pytest.raises(TimeoutError, match="worker 2 did not start within 0 s"):
        await within(0, asyncio.Event().wait(), "worker 2 did not start")
