"""Progress is a bar on a terminal and lines in a pipe."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest
from raftmq.cli.placement import waiting
from raftmq.cli.placement.waiting import Progress, shown


def progress(sentence: str, done: int = 0, *, is_over: bool = False) -> Progress:
    return Progress(done, 4, sentence, is_over)


def test_a_pipe_gets_a_line_for_a_change_but_not_for_each_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: now))
    with shown("draining broker 3") as show:
        for sentence in ("a", "a", "b", "c"):
            show(progress(sentence))
        now += waiting.LINE_SECONDS
        show(progress("c"))
        now += waiting.LINE_SECONDS
        show(progress("c"))
        show(progress("d", is_over=True))
    assert capsys.readouterr().err.splitlines() == [f"draining broker 3: {one}" for one in ("a", "c", "d")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_of(columns: int, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    return terminal


def test_a_terminal_gets_a_bar_that_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(120, monkeypatch)
    with shown("draining broker 3") as show:
        show(progress("holds 3 replicas", 1))
    said = terminal.getvalue()
    assert "draining broker 3" in said
    assert "holds 3 replicas" in said
    assert "━" in said
    assert said.endswith("\x1b[2K"), "the last line is erased"


@pytest.mark.parametrize("work", ["draining broker 3", "changing the replication factor of orders to 3"])
def test_a_narrow_terminal_gets_the_bar_and_the_whole_sentence(monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    """The sentence took the room of the bar."""
    terminal = terminal_of(80, monkeypatch)
    sentence = "holds 2 replicas and a vote on metadata, 2 partitions moving (24 % copied)"
    with shown(work) as show:
        show(progress(sentence, 1))
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9?;]*[A-Za-z]", "", terminal.getvalue()))
    assert any(sentence in line for line in lines)
    assert "━━━━━" in [line for line in lines if work in line][-1]
