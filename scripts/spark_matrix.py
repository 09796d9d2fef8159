"""Run the Spark tests on other versions of PySpark and Python: ``python -m scripts.spark_matrix [4.0=3.11 …] [-- pytest arguments]``.

Each pair gets its own environment in ``.venv/spark-matrix/``, with the versions in `requirements.lock` and then the newest PySpark of that
line. uv fetches a missing Python if it can. A pair whose environment cannot be created is reported. It fails the run if it was named, or if
it is the oldest or the newest default pair. At the end, a summary for each pair shows the tests that ran, and those skipped with the reasons.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

from scripts.find_java import ADVICE, find_java

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv/spark-matrix"
PAIRS = ("4.0=3.11", "4.1=3.12", "4.2=3.12", "4.3=3.13")
"""Every line of PySpark and every Python, the oldest with the oldest and the newest with the newest. `make test` runs the set-up's pair."""
PACKAGES = ("raft", "fsm", "assignors", "storage", "broker", "client", "spark", "cli")


PASSED = "passed"
NOT_MADE = "could not be made"
UNCLOSED_SOCKETS = "ignore:unclosed <socket:ResourceWarning"
"""PySpark before 4.2 leaves the sockets for results to the garbage collector, and in our tests warnings are errors."""
QUIRKS = {"4.0": (UNCLOSED_SOCKETS,), "4.1": (UNCLOSED_SOCKETS,)}
"""Warnings that PySpark itself causes, by its line."""


def run(*command: str | Path, **environment: str) -> int:
    print("+", *command, file=sys.stderr)
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=False).returncode


def find_python(version: str) -> str:
    """Return the path of a Python of pyenv, active or not. If there is none, return the version, which uv finds or fetches."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = sorted((pyenv / "versions").glob(f"{version}.*/bin/python"))
    return str(found[-1]) if found else version


def environment_of(pyspark: str, python: str) -> Path | None:
    """Create the environment if needed, and return its folder, or None if it cannot be created."""
    folder = FOLDER / f"{pyspark}-{python}"
    made = folder / ".made"
    stamp = f"{(ROOT / 'requirements.lock').stat().st_mtime_ns}"
    if made.exists() and made.read_text() == stamp:
        return folder
    uv, home = ROOT / ".venv/bin/uv", str(folder)
    steps: list[list[str | Path]] = [
        [uv, "venv", "--quiet", "--clear", "--python", find_python(python), folder],
        [uv, "pip", "sync", "--quiet", "--require-hashes", "requirements.lock"],
        [uv, "pip", "install", "--quiet", f"pyspark=={pyspark}.*"],
    ]
    if any(run(*step, VIRTUAL_ENV=home) for step in steps):
        return None
    made.write_text(stamp)
    return folder


def import_view(folder: Path) -> Path:
    """Create a folder in which the checkout's packages are `raftmq` and `pyspark_raftmq`, as in an installation."""
    view = folder / "view"
    package = view / "raftmq"
    package.mkdir(parents=True, exist_ok=True)
    links = {view / "pyspark_raftmq": ROOT / "pyspark_raftmq"}
    links |= {package / path.name: path for path in (ROOT / "api").iterdir()}
    links |= {package / name: ROOT / name for name in PACKAGES}
    for link, target in links.items():
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = view / f"raftmq-{project['version']}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: raftmq\nVersion: {project['version']}\n")
    return view


def versions_of(folder: Path) -> str:
    """Return the exact versions that were installed."""
    program = "import platform, pyspark; print(f'PySpark {pyspark.__version__} on Python {platform.python_version()}')"
    done = subprocess.run([folder / "bin/python", "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def summary_of(report: Path) -> list[str]:
    """Return lines with the counts of tests, the failed ones, and the reasons of skipped ones."""
    cases = ET.parse(report).getroot().iter("testcase")
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    lines = []
    for case in cases:
        outcome = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
        counts[outcome] += 1
        if outcome == "skipped":
            found = case.find("skipped")
            reasons[found.get("message", "") if found is not None else ""] += 1
        elif outcome != "passed":
            lines.append(f"  {outcome}: {case.get('classname')}::{case.get('name')}")
    totals = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failure", "error", "skipped"))
    return [f"  {totals}", *lines, *(f"  skipped {count}: {reason}" for reason, count in sorted(reasons.items()))]


def run_pair(pair: str, java: Path, more: list[str]) -> tuple[str, list[str]]:
    """Run the tests of one pair. Return its outcome and the lines of its report."""
    pyspark, python = pair.split("=")
    folder = environment_of(pyspark, python)
    if folder is None:
        return NOT_MADE, [f"PySpark {pyspark} on Python {python}: {NOT_MADE}: the message is above"]
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    path = f"{import_view(folder)}{os.pathsep}{ROOT}"
    quirks = [argument for quirk in QUIRKS.get(pyspark, ()) for argument in ("-W", quirk)]
    tests = ["-m", "pytest", "tests/spark", f"--junit-xml={report}", *quirks, *more]
    code = run(folder / "bin/python", *tests, PYTHONPATH=path, JAVA_HOME=str(java))
    outcome = PASSED if code == 0 else f"failed ({code})"
    return outcome, [f"{versions_of(folder)}: {outcome}", *(summary_of(report) if report.exists() else ())]


def main(arguments: list[str]) -> int:
    pairs = arguments[: arguments.index("--")] if "--" in arguments else arguments
    more = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    java = find_java()
    if java is None:
        print(ADVICE, file=sys.stderr)
        return 1
    results = {pair: run_pair(pair, java, more) for pair in pairs or PAIRS}
    for _, lines in results.values():
        print(*lines, sep="\n")
    needed = pairs or (PAIRS[0], PAIRS[-1])
    has_failed = any(outcome not in (PASSED, NOT_MADE) for outcome, _ in results.values())
    return 1 if has_failed or any(results[pair][0] != PASSED for pair in needed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
