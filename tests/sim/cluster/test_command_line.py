"""`python -m sim.cluster`: options of a run can be set, and the last line replays it."""

from __future__ import annotations

import sys

import pytest

from sim.cluster.__main__ import main


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sim.cluster", *arguments])
    return main()


@pytest.mark.slow
def test_options_that_are_set_hold_in_the_run_and_in_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    chosen = ("--set", "kill=7", "--set", "fault_every=0.5")
    assert run(monkeypatch, "--seed", "3", *chosen) == 0
    lines = capfd.readouterr().out.splitlines()  # a child process writes most of them
    assert any({"kill=7", "fault_every=0.5"} <= set(line.split()) for line in lines)
    assert lines[-1] == f'make sim SEED=3 ARGS="{" ".join(chosen)}"'


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("kil=1", "'kil' is no option; those with numbers are machines, "),
        ("kill=often", "'often' is not a number of type int"),
    ],
)
def test_an_option_that_does_not_exist_or_is_no_number_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, problem: str
) -> None:
    with pytest.raises(SystemExit) as raised:
        run(monkeypatch, "--set", option)
    assert raised.value.code == 2
    assert problem in capsys.readouterr().err


def test_options_of_a_mutant_cannot_be_set(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """They would be ignored."""
    with pytest.raises(SystemExit) as raised:
        run(monkeypatch, "--mutant", "votes_twice", "--set", "kill=1")
    assert raised.value.code == 2
    assert "a mutant has options of its own" in capsys.readouterr().err
