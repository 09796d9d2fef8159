"""Records the batches of seeds that were run, a row for each in `runs.csv`.

It must not judge or run anything. Invariant: a row is added when a batch is complete, and no row is ever changed or removed.
"""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sim.cluster.run import Outcome

_ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("runs.csv")
COLUMNS: tuple[str, ...] = (
    "commit",
    "options",
    "first",
    "seeds",
    "findings",
    "operations",
    "virtual_hours",
    "wall_minutes",
    "processor_minutes",
    "processes",
    "note",
)
FINDINGS_NAMED_MAX = 5
"""Maximum number of findings named in a batch's row. The rest is counted."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One batch."""

    commit: str
    options: Sequence[str]
    """Options that every seed was forced to have, such as `queues`."""
    first: int
    seeds: int
    findings: Sequence[Outcome]
    operations: int
    """Operations of clients in all seeds."""
    virtual_seconds: float
    wall_seconds: float
    cpu_seconds: float
    jobs: int

    def row(self) -> dict[str, str]:
        """Return the batch's row of the table, by columns."""
        return {
            "commit": self.commit,
            "options": " ".join(self.options),
            "first": str(self.first),
            "seeds": str(self.seeds),
            "findings": self._found(),
            "operations": str(self.operations),
            "virtual_hours": f"{self.virtual_seconds / 3600:.1f}",
            "wall_minutes": f"{self.wall_seconds / 60:.0f}",
            "processor_minutes": f"{self.cpu_seconds / 60:.0f}",
            "processes": str(self.jobs),
            "note": "",
        }

    def _found(self) -> str:
        named = [f"{one.seed} {one.verdict.name.lower()}" for one in self.findings[:FINDINGS_NAMED_MAX]]
        more = len(self.findings) - len(named)
        return "; ".join([*named, f"and {more} more"] if more else named)


def current_commit() -> str:
    """Return the current commit, with a plus if anything except the table differs from it, or "unknown" outside a repository."""

    def git(*arguments: str) -> str:
        done = subprocess.run(("git", *arguments), cwd=_ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short=10", "HEAD")
    if not commit:
        return "unknown"
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":(exclude){TABLE.relative_to(_ROOT)}")
    return f"{commit}{'+' if changed else ''}"


def write_record(record: RunRecord, table: Path = TABLE) -> None:
    """Add a row to the table."""
    with table.open("a", newline="") as file:
        csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(record.row())


def read_records(table: Path = TABLE) -> list[dict[str, str]]:
    """Return the rows of the table, by columns."""
    with table.open(newline="") as file:
        return list(csv.DictReader(file))
