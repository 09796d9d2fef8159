"""The choice of a Java for the tests of Spark, and its installation if there is none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from scripts import find_java


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Imitate a machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(find_java, "FOLDERS", (str(tmp_path / "jvm"),))
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if name == "apt-get" else None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin/java").touch()
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


def test_java_home_is_preferred_if_spark_supports_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java(tmp_path / "jvm/java-11", "11.0.2")
    found = java(tmp_path / "jvm/java-17", "17.0.15")
    assert find_java.find_java() == found
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "old", "1.8.0")))
    assert find_java.find_java() == found
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "new", "21.0.1")))
    assert find_java.find_java() == tmp_path / "new"


def test_without_java_the_error_names_the_command_that_installs_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert find_java.main(["--install"]) == 1  # the user is not root
    said = capsys.readouterr()
    assert said.out == ""
    assert "apt-get install openjdk-17-jre-headless" in said.err


def test_root_installs_java_after_an_update_of_the_package_lists(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        """Imitate a machine that knows its packages only after an update, and has Java 21."""
        commands.append(command[:2] + command[-1:])
        is_there = ["apt-get", "update", "update"] in commands and command[-1] == "openjdk-21-jre-headless"
        if is_there:
            java(tmp_path / "jvm/java-21", "21.0.1")
        return subprocess.CompletedProcess(command, 0 if is_there else 100)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(subprocess, "run", run)
    assert find_java.main(["--install"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "jvm/java-21")
    packages = [["apt-get", "install", package] for package in find_java.PACKAGES]
    assert commands == [*packages, ["apt-get", "update", "update"], *packages]
