"""Build a release, and prove that it works: ``python -m scripts.release [--draft]``. It uploads nothing and sets no tag.

It builds the source archive from the committed files, the wheel from that archive, and installs the wheel into a clean environment of each
supported Python, where `smoke.py` uses it far from the checkout. It checks the licences of all packages of each environment, and writes
the list of the last one as CycloneDX. Only after the last check is ``dist/`` replaced. The version is that of ``pyproject.toml``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

from scripts.spark_matrix import find_python

ROOT = Path(__file__).resolve().parents[1]
UV = ROOT / ".venv/bin/uv"
DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Every Python that the smoke test runs on. Each that is not available is named at the end."""
REQUIRED = ("3.11", "3.12", "3.13")
"""A release needs all of these."""
SBOM_TOOL = "cyclonedx-bom==7.5.0"
"""Run by uv in an environment of its own, because only a release needs it."""
SMOKE_SECONDS = 600


class ReleaseError(Exception):
    """The release cannot be made. The message gives the reason and the remedy."""


def version() -> str:
    """Return the version, which stands only in ``pyproject.toml``."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def check_changelog(text: str, number: str) -> None:
    """Raise `ReleaseError` unless the changelog has a dated section of this version with at least one line."""
    found = re.search(
        rf"^## \[{re.escape(number)}\] - \d{{4}}-\d\d-\d\d$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    if found is None:
        raise ReleaseError(
            f"CHANGELOG.md has no section `## [{number}] - YYYY-MM-DD`: rename [Unreleased], and begin a new one above it"
        )
    if not re.search(r"^- ", found[1], re.MULTILINE):
        raise ReleaseError(f"the section of {number} in CHANGELOG.md lists no change")


def run(*command: str | Path, cwd: Path = ROOT, timeout: float | None = None) -> None:
    print("+", *command, file=sys.stderr)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RAFTMQ_", "VIRTUAL_ENV"))}
    try:
        subprocess.run([str(part) for part in command], cwd=cwd, env=clean, check=True, timeout=timeout)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise ReleaseError(str(error)) from None


def build(number: str, work: Path) -> Path:
    """Build both archives from the committed files, and return the wheel. Raises `ReleaseError`, also if it lacks a file."""
    source = work / "source"
    source.mkdir()
    archive = work / "source.tar"
    run("git", "archive", "--output", archive, "HEAD")
    run("tar", "-xf", archive, "-C", source)
    built = work / "dist"
    run(UV, "build", "--quiet", "--out-dir", built, source)  # the wheel is built from the source archive
    wheel = built / f"raftmq-{number}-py3-none-any.whl"
    if not wheel.is_file():
        raise ReleaseError(f"there is no {wheel.name} among {sorted(path.name for path in built.iterdir())}")
    with zipfile.ZipFile(wheel) as packed:
        missing = missing_files(source, packed.namelist())
    if missing:
        raise ReleaseError(f"{wheel.name} lacks {', '.join(missing)}: add their packages to pyproject.toml")
    return wheel


def missing_files(source: Path, packed: Iterable[str]) -> list[str]:
    """Return the modules and markers in the package folders of a source tree that a wheel with these names lacks."""
    folders: dict[str, str] = tomllib.loads((source / "pyproject.toml").read_text())["tool"]["setuptools"][
        "package-dir"
    ]
    names = set(packed)
    return sorted(
        {
            str(path.relative_to(source))
            for package, folder in folders.items()
            for path in (source / folder).rglob("*")
            if (path.suffix in (".py", ".pyi") or path.name == "py.typed")
            and f"{package.replace('.', '/')}/{path.relative_to(source / folder).as_posix()}" not in names
        }
    )


def without_local_files(bom: str) -> str:
    """Return a CycloneDX list without the places on this machine from which packages were installed."""
    listed = json.loads(bom)
    for component in (listed.get("metadata", {}).get("component", {}), *listed["components"]):
        references = component.get("externalReferences", [])
        kept = [one for one in references if not one["url"].startswith("file://")]
        if kept:
            component["externalReferences"] = kept
        elif references:
            del component["externalReferences"]
    text = json.dumps(listed, indent=2) + "\n"
    if "file://" in text:
        raise ReleaseError(
            "the list of packages names a file of this machine: see without_local_files in scripts/release.py"
        )
    return text


def installed(wheel: Path, python: str, work: Path) -> Path | None:
    """Install the wheel with the pinned packages into a clean environment. Return its Python, or None if this version is not available."""
    folder = work / f"python-{python}"
    pins = work / "pins.txt"
    pins.write_text("\n".join(re.findall(r"^[\w.-]+==\S+", (ROOT / "requirements.lock").read_text(), re.MULTILINE)))
    try:
        run(UV, "venv", "--quiet", "--python", find_python(python), folder)
    except ReleaseError:
        return None
    run(UV, "pip", "install", "--quiet", "--python", folder / "bin/python", "-c", pins, f"{wheel}[server]")
    return folder / "bin/python"


def release(*, is_draft: bool) -> None:
    number = version()
    if not is_draft:
        check_changelog((ROOT / "CHANGELOG.md").read_text(), number)
        if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, check=True, capture_output=True).stdout:
            raise ReleaseError("the checkout has changes that are not committed: commit or stash them")
    results: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="raftmq-release-") as name:
        work = Path(name)
        wheel = build(number, work)
        smoke = Path(shutil.copy(ROOT / "scripts/smoke.py", work))
        for python in PYTHONS:
            program = installed(wheel, python, work)
            if program is None:
                results[python] = "is not available here"
                continue
            elsewhere = work / f"elsewhere-{python}"
            elsewhere.mkdir()
            run(program, "-I", smoke, number, cwd=elsewhere, timeout=SMOKE_SECONDS)
            run(sys.executable, ROOT / "scripts/licences.py", program)
            results[python] = "works"
        for python, result in results.items():
            print(f"Python {python}: {result}")
        missing = [python for python in REQUIRED if results[python] != "works"]
        if missing:
            raise ReleaseError(
                f"not tried on Python {', '.join(missing)}: install it, for example with pyenv or uv python install"
            )
        last = next(work / f"python-{one}/bin/python" for one in reversed(PYTHONS) if results[one] == "works")
        bom = wheel.with_name(f"raftmq-{number}.cdx.json")
        run(UV, "tool", "run", "--from", SBOM_TOOL, "cyclonedx-py", "environment", "--of", "JSON", "-o", bom, last)
        bom.write_text(without_local_files(bom.read_text()))
        shutil.rmtree(DIST, ignore_errors=True)
        shutil.copytree(wheel.parent, DIST)
    print(*sorted(f"dist/{path.name}" for path in DIST.iterdir() if path.name != ".gitignore"), sep="\n")
    print(
        f"{'draft of ' if is_draft else ''}release {number} is built; docs/guides/releasing.md has the remaining steps"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--draft", action="store_true", help="build committed files although the changelog has no section yet"
    )
    try:
        release(is_draft=parser.parse_args().draft)
    except ReleaseError as error:
        raise SystemExit(f"release: {error}") from None


if __name__ == "__main__":
    main()
