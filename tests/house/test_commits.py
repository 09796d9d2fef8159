"""The subjects of commits keep the rule of CONTRIBUTING.md."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.house.files import ROOT

SUBJECT_MAX = 72
SINCE = "2026-11-28T12:00:00Z"
"""Earlier commits stay as they are: many subjects of theirs are longer."""
SUBJECT = re.compile(r"[a-z][a-z0-9_./, -]*: \S")


def wrong_subjects(repository: Path, since: str) -> list[str]:
    """Return the subjects of commits since a time that are too long or name no room. Merges are left out."""
    listed = subprocess.run(
        ["git", "log", "--no-merges", f"--since={since}", "--format=%s"],
        cwd=repository, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [line for line in listed.stdout.splitlines() if len(line) > SUBJECT_MAX or not SUBJECT.match(line)]


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="not a checkout")
def test_subjects_name_a_room_and_have_at_most_72_characters() -> None:
    assert wrong_subjects(ROOT, SINCE) == []


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_a_subject_that_is_too_long_or_names_no_room_is_found(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )

    git("init")
    for subject in (
        "storage: " + "x" * 63,
        "storage: " + "x" * 64,
        "Fix it",
        "client, docs: a table",
        "base/limits:no space",
    ):
        git("commit", "--allow-empty", "-m", subject)
    assert wrong_subjects(tmp_path, "2000-01-01") == ["base/limits:no space", "Fix it", "storage: " + "x" * 64]
    assert wrong_subjects(tmp_path, "2098-01-01") == []
