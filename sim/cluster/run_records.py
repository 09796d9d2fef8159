"""Records the batches of seeds that were run and their findings: a row for each batch in `docs/internals/simulation-runs.md`.

It must not judge or run anything. Invariant: a row is added when a batch is complete, and no row is ever changed or removed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sim.cluster.run import Outcome

_ROOT = Path(__file__).resolve().parents[2]
PAGE = _ROOT / "docs/internals/simulation-runs.md"
END = "<!-- end of runs -->\n"
FINDINGS_NAMED_MAX = 5
"""Maximum number of findings named in a batch's row. The rest is counted."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One batch."""

    commit: str
    first: int
    seeds: int
    findings: Sequence[Outcome]
    operations: int
    virtual_seconds: float
    wall_seconds: float
    cpu_seconds: float
    jobs: int

    def row(self) -> str:
        """Return the batch's row of the table."""
        return (
            f"| {self.commit} | {self.first}–{self.first + self.seeds - 1} | {self.seeds:,} | {self._found()} "
            f"| {self.operations:,} | {self.virtual_seconds / 3600:.1f} | {self.wall_seconds / 60:.0f} "
            f"| {self.cpu_seconds / 60:.0f} | {self.jobs} |\n"
        )

    def _found(self) -> str:
        if not self.findings:
            return "nothing"
        named = [f"{one.seed} {one.verdict.name.lower()}" for one in self.findings[:FINDINGS_NAMED_MAX]]
        more = len(self.findings) - len(named)
        return f"{len(self.findings)}: " + ", ".join(named) + (f", and {more} more" if more else "")


def current_commit() -> str:
    """Return the current commit, with a plus if anything except the table differs from it, or "unknown" outside a repository."""

    def git(*arguments: str) -> str:
        done = subprocess.run(("git", *arguments), cwd=_ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short=10", "HEAD")
    if not commit:
        return "unknown"
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":(exclude){PAGE.relative_to(_ROOT)}")
    return f"`{commit}{'+' if changed else ''}`"


def with_row(page: str, row: str) -> str:
    """Return the page with one more row at the end of the table."""
    before, end, after = page.partition(END)
    if not end:
        raise ValueError("the page has no table of runs")
    return before + row + end + after


def write_record(record: RunRecord, page: Path = PAGE) -> None:
    """Add a row to the page."""
    page.write_text(with_row(page.read_text(), record.row()))
