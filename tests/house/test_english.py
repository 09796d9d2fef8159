"""The texts read as plain English: habits that make a reader begin a sentence again are counted, and the bounds only fall.

CONTRIBUTING.md has the rules. To lower a bound, mend texts, run this test and write the rates that it prints.
"""

from functools import cache
from pathlib import Path

import pytest

from tests.support.house.files import ROOT, tracked_files
from tests.support.house.prose import Counts, count

SLACK = (15, 2, 3)
"""A bound that is this much above the rate is lowered, so that it only falls."""
BOUNDS: dict[str, tuple[int, int, int]] = {
    ".github": (0, 0, 0),
    "api": (5, 2, 0),
    "assignors": (0, 3, 0),
    "bench": (0, 2, 0),
    "broker": (5, 1, 0),
    "cli": (3, 2, 1),
    "client": (4, 2, 0),
    "docs": (8, 1, 0),
    "docs/adr": (2, 1, 0),
    "examples": (0, 1, 0),
    "fsm": (0, 4, 1),
    "helm": (0, 0, 0),
    "pages at the root": (4, 2, 0),
    "pyspark_raftmq": (0, 0, 0),
    "raft": (8, 1, 0),
    "scripts": (0, 0, 0),
    "sim": (2, 1, 1),
    "spark": (0, 1, 0),
    "storage": (0, 1, 2),
    "tests": (4, 1, 1),
}
"""By area: "what" per 10,000 words, semicolons per 1,000 words, and the percentage of docstrings that begin with a question word."""


def area_of(file: Path) -> str:
    if file.parts[:2] == ("docs", "adr"):
        return "docs/adr"
    return file.parts[0] if len(file.parts) > 1 else "pages at the root"


@cache
def counts() -> dict[str, Counts]:
    found: dict[str, Counts] = {}
    for path in tracked_files():
        file = path.relative_to(ROOT)
        if file.suffix in (".py", ".md") and file.parts[:2] != ("api", "proto"):
            count(path, found.setdefault(area_of(file), Counts()))
    return found


def rates() -> dict[str, tuple[int, int, int]]:
    return {area: found.rates for area, found in counts().items()}


def test_every_area_has_a_bound() -> None:
    assert set(rates()) == set(BOUNDS)


@pytest.mark.parametrize("area", BOUNDS)
def test_the_habits_of_an_area_become_rarer(area: str) -> None:
    measured, bounds = rates()[area], BOUNDS[area]
    assert all(rate <= bound for rate, bound in zip(measured, bounds, strict=True)), f"{area}: {measured}"
    lowered = all(bound <= rate + slack for rate, bound, slack in zip(measured, bounds, SLACK, strict=True))
    assert lowered, f"well done: lower the bound of {area} to {measured}"


@pytest.mark.parametrize("area", BOUNDS)
def test_no_stiff_word_is_used(area: str) -> None:
    assert counts()[area].stiff == []


def test_habits_are_counted(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""What it is; or `what; ever`."""\nNAME = 1\n"""What a name is."""\n# what; is this\n# noqa: what\n'
    )
    page = tmp_path / "page.md"
    page.write_text("What; it says. Whoever shall read `anew`.\n\n| a; b |\n\n```sh\nwhat; ever\n```\n")
    found = Counts()
    count(module, found)
    count(page, found)
    assert (found.whats, found.semicolons, found.docstrings, found.question_first) == (4, 3, 1, 1)
    assert [one.partition(":")[0] for one in found.stiff] == ["Whoever", "shall"]
