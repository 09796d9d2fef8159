"""Write the closing report of the second act. Pure."""

import statistics
from collections.abc import Iterable

from examples.demo_jobs.jobs import Job, JobPlan
from examples.demo_jobs.journal import JobVerification, Journal
from examples.demo_jobs.second_act import ActReport

PROBLEMS_SHOWN = 20


def waits_of(jobs: Iterable[Job], report: ActReport, journal: Journal) -> list[float]:
    """Return the seconds from the put of each job to its first beginning, in ascending order."""
    begun = ((report.put_at[job.row], journal.histories[job.row].first_begun) for job in jobs)
    return sorted(max(0.0, first - put) for put, first in begun if first)


def show_wait(seconds: float) -> str:
    """Return a duration in a unit that suits it."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def show_median(waits: list[float]) -> str:
    """Return the median of durations."""
    return show_wait(statistics.median(waits)) if waits else "(none)"


def act_lines(plan: JobPlan, report: ActReport, journal: Journal, checked: JobVerification) -> list[str]:
    """Return the closing report, with the first problems if there are any."""
    total = plan.total
    noisy, quiet = (waits_of(jobs, report, journal) for jobs in (plan.backlog, plan.quiet))
    ordered = sorted(plan.backlog, key=lambda job: -job.delay_minutes)
    tenth = len(ordered) // 10
    most, least = (waits_of(jobs, report, journal) for jobs in (ordered[:tenth], ordered[-tenth:]))
    carriers = len({job.carrier for job in plan.quiet})
    again = sum(map(journal.is_begun_again, journal.held))
    last = f", {len(journal.held) - again} at their last attempt" if again < len(journal.held) else ""
    noisy_name = plan.noisy_carrier
    longest = f", at most {show_wait(quiet[-1])}" if quiet else ""
    verified = f"{checked.ended:,} of {total:,}"
    lines = [
        "",
        f"jobs verified      {verified}: each ended exactly once, by an accepted settlement or as a dead letter"
        if not checked.problems
        else f"jobs verified      {verified}, {len(checked.problems):,} PROBLEMS",
        f"done and dead      {checked.done:,} done; dead letters: {checked.rejected:,} rejected, {checked.exhausted:,} out of attempts",
        f"repeated           {checked.retried:,} failed attempts after a back-off; {checked.lost:,} settlements refused after their lease",
        f"speed              {total / max(report.seconds, 1e-9):,.0f} jobs/s, the failover included",
        f"the broker         SIGKILL of broker {report.killed_broker}, leader of the queue; jobs done again after {report.failover_seconds:.2f} s",
        f"the worker         SIGKILL of worker {report.killed_worker} with {len(journal.held)} jobs in work: {again} delivered again{last}",
        f"priority           {noisy_name}'s most delayed tenth waited {show_median(most)}, its least delayed tenth {show_median(least)}",
        f"noisy carrier      {noisy_name} put {len(plan.backlog):,} jobs together, which waited {show_median(noisy)}",
        f"quiet carriers     {carriers} others put {len(plan.quiet):,} jobs in between, which waited {show_median(quiet)}{longest}",
    ]
    lines += [f"PROBLEM {problem}" for problem in checked.problems[:PROBLEMS_SHOWN]]
    if len(checked.problems) > PROBLEMS_SHOWN:
        lines.append(f"… and {len(checked.problems) - PROBLEMS_SHOWN:,} more")
    return lines
