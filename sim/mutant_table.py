"""`python -m sim.mutant_table` (`make mutants`): hunts every mutant from its first seed on and writes the table into
`docs/internals/testing.md`: those of the core alone, and those of whole nodes.

Exit code 1 when one is not found. The suite replays each by the seed in the table (`known_seed`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from sim.core import mutants as core
from sim.core.run import Outcome as CoreOutcome
from sim.core.run import Verdict as CoreVerdict
from sim.core.run import run_seed as run_core_seed
from sim.node.batch import run_batch
from sim.node.mutants import MUTANTS, SEEDS_MAX, Mutant
from sim.node.run import Outcome, Verdict

PAGE = Path(__file__).resolve().parents[1] / "docs/internals/testing.md"
BEGIN, END = "<!-- mutants -->\n", "<!-- end of mutants -->\n"
HEADER = "| mutant | the bug | where | found by | seeds needed |\n|---|---|---|---|---|\n"


class Row(NamedTuple):
    """A line of the table."""

    name: str
    bug: str
    where: str
    found_by: str
    seeds: int

    def __str__(self) -> str:
        return f"| `{self.name}` | {self.bug} | {self.where} | {self.found_by} | {self.seeds} |\n"


NOTHING = "**nothing**"

# ------------------------------------------------------------------------------------------------------- known seeds


def known_seeds(page: str) -> dict[str, int]:
    """Mutant → the seed that found it when the page's table was written."""
    rows = page.partition(BEGIN)[2].partition(END)[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if row.startswith("| `")]
    return {row[0].strip("`"): int(row[-1]) - 1 for row in cells}


def known_seed(name: str) -> int:
    """The seed that found a mutant last time; 0 when the table does not have it."""
    return known_seeds(PAGE.read_text()).get(name, 0)


def _seeds(known: int, seeds_max: int) -> Iterator[int]:
    """The known one, then all from 0 on."""
    return chain([known] if known else [], range(seeds_max))


# ------------------------------------------------------------------------------------------------------------- hunting


def hunt(mutant: Mutant, known: int = 0) -> Outcome:
    """Whole nodes: the first outcome that finds it, or the last."""
    outcome = None
    for seed in _seeds(known, SEEDS_MAX):
        (outcome,) = run_batch(seed, 1, jobs=1, build=mutant.build)
        if outcome.verdict is not Verdict.OK:
            break
    assert outcome is not None
    return outcome


def hunt_core(name: str, known: int = 0) -> CoreOutcome | None:
    """The core alone: the first outcome that finds it within its budget."""
    mutant = core.MUTANTS[name]
    for seed in _seeds(known, mutant.seeds_max):
        outcome = run_core_seed(seed, mutant.build, profile=mutant.profile)
        if outcome.verdict is not CoreVerdict.OK:
            return outcome
    return None


def _found_by(verdict: str, detail: str) -> str:
    """The invariant that broke, or how the run ended."""
    if verdict == "SAFETY":
        name = detail.partition(":")[0].removeprefix("invariant ").partition(" violated")[0]
        return f"`{name}`"
    return {"OK": NOTHING, "LIVENESS": "liveness", "CRASH": "an exception"}[verdict]


def _node_row(name: str) -> Row:
    mutant = MUTANTS[name]
    outcome = hunt(mutant)
    return Row(name, mutant.what, mutant.part, _found_by(outcome.verdict.name, outcome.detail), outcome.seed + 1)


def _core_row(name: str) -> Row:
    build = core.MUTANTS[name].build
    planted = next(kind for kind in (build.core, build.replica, build.disk) if kind.__module__ == core.__name__)
    bug = " ".join((inspect.getdoc(planted) or "").partition("\n\n")[0].split()).rstrip(".")
    outcome = hunt_core(name)
    if outcome is None:
        return Row(name, bug, "core alone", NOTHING, core.MUTANTS[name].seeds_max)
    return Row(name, bug, "core alone", _found_by(outcome.verdict.name, outcome.detail), outcome.seed + 1)


# -------------------------------------------------------------------------------------------------------------- writing


def with_table(page: str, rows: list[Row]) -> str:
    """The page with another table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + HEADER + "".join(map(str, rows)) + END + after


def main() -> int:
    """Run and write. 1 when a mutant is not found."""
    rows: list[Row] = []
    hunts: list[tuple[Callable[[str], Row], str]] = [(_node_row, name) for name in MUTANTS]
    hunts += [(_core_row, name) for name in core.MUTANTS]
    for hunting, name in hunts:
        rows.append(hunting(name))
        print(f"{len(rows)}/{len(hunts)} {name}: {rows[-1].found_by}, {rows[-1].seeds}", flush=True)
    PAGE.write_text(with_table(PAGE.read_text(), rows))
    return int(any(row.found_by == NOTHING for row in rows))


if __name__ == "__main__":
    sys.exit(main())
