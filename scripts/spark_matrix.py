"""Runs the Spark tests on other versions of PySpark and Python: ``python -m scripts.spark_matrix [4.0=3.11 …] [-- pytest arguments]``.

Each pair gets an environment of its own in ``.venv/spark-matrix/``: what `requirements.lock` pins, and then the newest PySpark of that
line. A Python that this machine lacks is fetched by uv if it can; a pair that cannot be made is reported, and fails the run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from scripts.find_java import ADVICE, find_java

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv/spark-matrix"
PAIRS = ("4.0=3.11", "4.1=3.12", "4.2=3.12", "4.3=3.13")
"""Every line of PySpark and every Python, the oldest and the newest together; the set-up's own pair runs in `make test`."""
PACKAGES = ("raft", "fsm", "assignors", "storage", "broker", "client", "spark", "cli")


def run(*command: str | Path, **environment: str) -> int:
    print("+", *command, file=sys.stderr)
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=False).returncode


def environment_of(pyspark: str, python: str) -> Path | None:
    """The environment's folder; None if it cannot be made."""
    folder = FOLDER / f"{pyspark}-{python}"
    made = folder / ".made"
    stamp = f"{(ROOT / 'requirements.lock').stat().st_mtime_ns}"
    if made.exists() and made.read_text() == stamp:
        return folder
    uv, home = ROOT / ".venv/bin/uv", str(folder)
    steps: list[list[str | Path]] = [
        [uv, "venv", "--quiet", "--clear", "--python", python, folder],
        [uv, "pip", "sync", "--quiet", "--require-hashes", "requirements.lock"],
        [uv, "pip", "install", "--quiet", f"pyspark=={pyspark}.*"],
    ]
    if any(run(*step, VIRTUAL_ENV=home) for step in steps):
        return None
    made.write_text(stamp)
    return folder


def import_view(folder: Path) -> Path:
    """A folder in which the checkout's packages are `raftmq` and `pyspark_raftmq`, as an installation has them."""
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


def main(arguments: list[str]) -> int:
    pairs = arguments[: arguments.index("--")] if "--" in arguments else arguments
    more = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    java = find_java()
    if java is None:
        print(ADVICE, file=sys.stderr)
        return 1
    results = {}
    for pair in pairs or PAIRS:
        pyspark, python = pair.split("=")
        folder = environment_of(pyspark, python)
        if folder is None:
            results[pair] = "could not be made"
            continue
        path = f"{import_view(folder)}{os.pathsep}{ROOT}"
        code = run(folder / "bin/python", "-m", "pytest", "tests/spark", *more, PYTHONPATH=path, JAVA_HOME=str(java))
        results[pair] = "passed" if code == 0 else f"failed ({code})"
    for pair, result in results.items():
        pyspark, python = pair.split("=")
        print(f"PySpark {pyspark} on Python {python}: {result}")
    return 0 if all(result == "passed" for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
