"""`raftmq recover` as another user than the broker's."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from raftmq.cli.exit_codes import ExitCode
from raftmq.cli.recover import _user_name, metadata, rejoin

NAMELESS = 4_000_000_000
"""The number of a user that no machine knows."""


@pytest.mark.parametrize("command", [metadata, rejoin])
@pytest.mark.parametrize("is_unsafe", [False, True])
def test_another_user_than_the_owner_is_refused_with_a_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: Callable[..., None],
    *,
    is_unsafe: bool,
) -> None:
    """The broker ended at its next start, because it could not open the files that root had created."""
    directory = tmp_path / "da ta"
    directory.mkdir()
    (directory / "node.mdb").touch()
    owner = _user_name(os.geteuid())
    monkeypatch.setattr(os, "geteuid", lambda: NAMELESS)
    with pytest.raises(SystemExit) as ended:
        command(directory, unsafe=is_unsafe, yes=True)
    assert ended.value.code == ExitCode.REJECTED
    said = capsys.readouterr().err
    assert f"belongs to user {owner}, whose broker could not open the files that user #{NAMELESS} creates" in said
    options = " --unsafe" if is_unsafe else ""
    assert said.endswith(
        f": run sudo -u {shlex.quote(owner)} raftmq recover {command.__name__} '{directory}'{options}\n"
    )
    assert [path.name for path in directory.iterdir()] == ["node.mdb"], "not even a lock was created"


@pytest.mark.parametrize("is_posix", [True, False])
def test_the_owner_and_systems_without_users_are_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, is_posix: bool
) -> None:
    (tmp_path / "node.mdb").touch()
    if not is_posix:
        monkeypatch.delattr(os, "geteuid")
    with pytest.raises(SystemExit):
        metadata(tmp_path)
    assert "node.mdb in " in (said := capsys.readouterr().err)
    assert " is empty or damaged " in said
