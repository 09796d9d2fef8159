"""`python -m sim.mutant_table [NAME… | --missing]` (`make mutants`): hunts mutants, by default all, and writes their table into
`docs/internals/testing.md`. It starts at each mutant's first seed and writes each row as soon as it is known.

A seed counts for a mutant only if the product passes it with the same options. Otherwise the options would be found, and not the bug.
The exit code is 1 if a mutant is not found. The test suite replays each mutant by its seed in the table (`known_seed`).
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from sim.cluster.batch import run_batch
from sim.cluster.mutants import MUTANTS, SEEDS_MAX, Mutant
from sim.cluster.run import Build, Outcome, Verdict
from sim.core import mutants as core
from sim.core.run import Outcome as CoreOutcome
from sim.core.run import Verdict as CoreVerdict
from sim.core.run import run_seed as run_core_seed

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
    """Return for each mutant the seed that found it when the page's table was written."""
    return {name: row.seeds - 1 for name, row in known_rows(page).items()}


def known_seed(name: str) -> int:
    """Return the seed that found a mutant last time, or 0 if the table does not have it."""
    return known_seeds(PAGE.read_text()).get(name, 0)


def _seeds(known: int, seeds_max: int) -> Iterator[int]:
    """Iterate over the known seed, then over all seeds from 0 on."""
    return chain([known] if known else [], range(seeds_max))


# ------------------------------------------------------------------------------------------------------------- hunting


class StaleMutantError(Exception):
    """A mutant patches or calls something that the product no longer has: its own error would be found, and not the bug."""


_OWN_ERRORS = ("TypeError", "AttributeError", "ImportError", "ModuleNotFoundError")
"""The errors that a stale mutant raises."""


def hunt(mutant: Mutant, known: int = 0) -> Outcome | None:
    """Return the first outcome of whole nodes that finds the mutant, within its budget. Raises `StaleMutantError`."""
    for seed in _seeds(known, SEEDS_MAX):
        outcome = _outcome(seed, mutant.build)
        if any(f"{error}(" in outcome.detail or f"{error}:" in outcome.detail for error in _OWN_ERRORS):
            raise StaleMutantError(f"{mutant.name}: {outcome.detail}")
        if outcome.verdict is not Verdict.OK and _passes_without(mutant, seed):
            return outcome
    return None


_passed: dict[str, bool] = {}
"""Whether the product passes a seed with some options. Many mutants of queues have the same ones."""


def _passes_without(mutant: Mutant, seed: int) -> bool:
    """Return whether the product passes the seed with the mutant's options. Without any options, the batches of seeds show it."""
    build = replace(mutant.build, patch=None)
    if not build.option_overrides and not build.has_queues:
        return True
    run = repr((seed, build))
    if run not in _passed:
        _passed[run] = _outcome(seed, build).verdict is Verdict.OK
    return _passed[run]


def _outcome(seed: int, build: Build) -> Outcome:
    (outcome,) = run_batch(seed, 1, jobs=1, build=build)
    return outcome


def hunt_core(name: str, known: int = 0) -> CoreOutcome | None:
    """Return the first outcome of the core alone that finds the mutant, within its budget."""
    mutant = core.MUTANTS[name]
    for seed in _seeds(known, mutant.seeds_max):
        outcome = run_core_seed(seed, mutant.build, profile=mutant.profile)
        if outcome.verdict is not CoreVerdict.OK:
            return outcome
    return None


def _found_by(verdict: str, detail: str) -> str:
    """Return the invariant that broke, or the kind of the run's end."""
    if verdict == "SAFETY":
        name = detail.partition(":")[0].removeprefix("invariant ").partition(" violated")[0]
        return f"`{name}`"
    return {"OK": NOTHING, "LIVENESS": "liveness", "CRASH": "an exception"}[verdict]


def _node_row(name: str) -> Row:
    mutant = MUTANTS[name]
    outcome = hunt(mutant)
    if outcome is None:
        return Row(name, mutant.what, mutant.part, NOTHING, SEEDS_MAX)
    return Row(name, mutant.what, mutant.part, _found_by(outcome.verdict.name, outcome.detail), outcome.seed + 1)


def _core_row(name: str) -> Row:
    build = core.MUTANTS[name].build
    planted = next(
        kind for kind in (build.core, build.replica, build.disk) if kind.__module__.startswith(core.__name__)
    )
    bug = " ".join((inspect.getdoc(planted) or "").partition("\n\n")[0].split()).rstrip(".")
    outcome = hunt_core(name)
    if outcome is None:
        return Row(name, bug, "core alone", NOTHING, core.MUTANTS[name].seeds_max)
    return Row(name, bug, "core alone", _found_by(outcome.verdict.name, outcome.detail), outcome.seed + 1)


# -------------------------------------------------------------------------------------------------------------- writing


def known_rows(page: str) -> dict[str, Row]:
    """Return the page's rows by mutant."""
    lines = page.partition(BEGIN)[2].partition(END)[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    rows = [Row(name.strip("`"), bug, where, found_by, int(seeds)) for name, bug, where, found_by, seeds in cells]
    return {row.name: row for row in rows}


def with_table(page: str, rows: Iterable[Row]) -> str:
    """Return the page with a new table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + HEADER + "".join(map(str, rows)) + END + after


def main() -> int:
    """Hunt the mutants and write the table. Return 1 if a mutant is not found."""
    order = [*MUTANTS, *core.MUTANTS]
    parser = argparse.ArgumentParser(prog="python -m sim.mutant_table", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *order], default=[], metavar="NAME")
    parser.add_argument("--missing", action="store_true", help="hunt only mutants without a row")
    arguments = parser.parse_args()
    names = arguments.names or order
    if arguments.missing:
        rows = known_rows(PAGE.read_text())
        names = [name for name in names if name not in rows]
    is_complete = True
    for number, name in enumerate(names, start=1):
        row = _node_row(name) if name in MUTANTS else _core_row(name)
        is_complete &= row.found_by != NOTHING
        print(f"{number}/{len(names)} {name}: {row.found_by}, {row.seeds}", flush=True)
        page = PAGE.read_text()
        rows = known_rows(page) | {name: row}
        PAGE.write_text(with_table(page, (rows[one] for one in order if one in rows)))
    return int(not is_complete)


if __name__ == "__main__":
    sys.exit(main())
