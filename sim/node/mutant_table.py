"""`python -m sim.node.mutant_table`: runs every mutant until it is found and writes the table into `docs/internals/testing.md`."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path

from sim.node.batch import run_batch
from sim.node.mutants import MUTANTS, SEEDS_MAX, Mutant
from sim.node.run import Outcome, Verdict

PAGE = Path(__file__).resolve().parents[2] / "docs/internals/testing.md"
BEGIN, END = "<!-- mutants -->\n", "<!-- end of mutants -->\n"


def found_by(outcome: Outcome) -> str:
    """The invariant that broke, or how the run ended."""
    if outcome.verdict is Verdict.SAFETY:
        return f"`{outcome.detail.partition(':')[0]}`"
    return {Verdict.OK: "**nothing**", Verdict.LIVENESS: "liveness", Verdict.CRASH: "an exception"}[outcome.verdict]


def known_seeds(page: str) -> dict[str, int]:
    """Mutant → the seed that found it when the page's table was written."""
    rows = page.partition(BEGIN)[2].partition(END)[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if row.startswith("| `")]
    return {row[0].strip("`"): int(row[-1]) - 1 for row in cells}


def hunt(mutant: Mutant, known_seed: int = 0) -> Outcome:
    """The first outcome that finds it, or the last: of the seed that did before, then of all from 0 on."""
    outcome = None
    seeds = (run_batch(known_seed, 1, jobs=1, build=mutant.build), run_batch(0, SEEDS_MAX, jobs=1, build=mutant.build))
    for outcome in chain.from_iterable(seeds if known_seed else seeds[1:]):
        if outcome.verdict is not Verdict.OK:
            break
    assert outcome is not None
    return outcome


def table(outcomes: dict[str, Outcome]) -> str:
    """One line for each mutant."""
    lines = ["| mutant | the bug | where | found by | seeds needed |", "|---|---|---|---|---|"]
    for name, outcome in outcomes.items():
        mutant = MUTANTS[name]
        lines.append(f"| `{name}` | {mutant.what} | {mutant.part} | {found_by(outcome)} | {outcome.seed + 1} |")
    return "\n".join(lines) + "\n"


def with_table(page: str, text: str) -> str:
    """The page with another table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + text + END + after


def main() -> int:
    """Run and write. 1 when a mutant is not found."""
    outcomes: dict[str, Outcome] = {}
    for name, mutant in MUTANTS.items():
        outcomes[name] = hunt(mutant)
        print(name, found_by(outcomes[name]), outcomes[name].detail[:120], flush=True)
    PAGE.write_text(with_table(PAGE.read_text(), table(outcomes)))
    return int(any(outcome.verdict is Verdict.OK for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
