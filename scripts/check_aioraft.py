"""Repeat the check behind ADR 1: can the newest aioraft-ng carry a group per partition, a log, and a disk?

Usage: python scripts/check_aioraft.py [--build-seconds N]

Uses pip only, in a throw-away virtual environment: fetches the newest release of aioraft-ng without its dependencies, reads its source,
then tries to install it as a user would. Never imports the package (an import would run it), leaves nothing behind.
Needs protobuf in the interpreter that runs it (any version), to read the wire format out of the generated module.

Exit code 0: the check ran (whatever it found). 1: it could not run, for instance without a package index.
"""

from __future__ import annotations

import argparse
import ast
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from google.protobuf import descriptor_pb2

PACKAGE = "aioraft-ng"
PERSISTENCE = re.compile(r"\b(open|fsync|sqlite3|lmdb|aiofiles|write_bytes|write_text|pickle\.dump|os\.replace)\b")
LOG_WRITES = re.compile(
    r"\blog\w*\s*(\.append\(|\.extend\(|\[[^\]]*\]\s*=|\+=)|next_index\[|match_index\[", re.IGNORECASE
)
SENT_ENTRIES = re.compile(r"entries\s*=\s*([^,\n]+)")


@dataclass(frozen=True)
class Installation:
    """Report pip's attempt to install the package and everything it pins."""

    mode: str
    succeeded: bool
    seconds: float
    last_lines: tuple[str, ...]


def run(command: list[str], timeout: float) -> tuple[int, str]:
    """Run a command. Return its exit code (124 on timeout) and its whole output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return 124, f"gave up after {timeout:.0f} s"
    return done.returncode, done.stdout + done.stderr


def try_install(python: Path, mode: str, options: list[str], timeout: float) -> Installation:
    """Install the package with its own pins by pip, and report the result."""
    started = time.monotonic()
    code, output = run([str(python), "-m", "pip", "install", *options, PACKAGE], timeout)
    said = [line.strip() for line in output.splitlines() if line.strip()]
    # Nothing of this machine belongs in a report that is pasted into a document.
    telling = [line for line in said if "error" in line.lower() or "no matching" in line.lower() or "gave up" in line]
    return Installation(mode, code == 0, time.monotonic() - started, tuple((telling or said)[-4:]))


def unpack(archive: Path, target: Path) -> Path:
    """Unpack a wheel or an sdist and return the folder it is in."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(target)
    else:
        with tarfile.open(archive) as source:
            source.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 have none
            source.extractall(target)
    return target


def wire_format(root: Path) -> dict[str, list[str]]:
    """Return message name → field names, from the serialized descriptor inside the generated ``*_pb2.py`` files."""
    messages: dict[str, list[str]] = {}
    for module in root.rglob("*_pb2.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "AddSerializedFile":
                described = descriptor_pb2.FileDescriptorProto.FromString(ast.literal_eval(node.args[0]))
                messages |= {
                    message.name: [field.name for field in message.field] for message in described.message_type
                }
    return messages


def source_lines(root: Path, pattern: re.Pattern[str]) -> list[str]:
    """Return ``file:line: text`` of the hand-written code lines that match, without comments and docstrings."""
    found = []
    for module in sorted(root.rglob("*.py")):
        if "_pb2" in module.name or "test" in module.name:
            continue
        text = module.read_text()
        prose = {
            line
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        for number, line in enumerate(text.splitlines(), start=1):
            code = line.split("#")[0]
            if number not in prose and pattern.search(code):
                found.append(f"{module.relative_to(root)}:{number}: {line.strip()}")
    return found


def requirements(root: Path) -> list[str]:
    """Return the run-time requirements in the package's metadata."""
    metadata = next(iter([*root.rglob("METADATA"), *root.rglob("PKG-INFO")]), None)
    lines = metadata.read_text().splitlines() if metadata else []
    return [
        line.removeprefix("Requires-Dist: ")
        for line in lines
        if line.startswith("Requires-Dist:") and "extra" not in line
    ]


def report(archive: Path, root: Path, installations: list[Installation]) -> None:
    """Print the findings, ready for the decision record."""
    messages = wire_format(root)
    groups = sorted({f"{name}.{field}" for name, fields in messages.items() for field in fields if "group" in field})
    log_writes = source_lines(root, LOG_WRITES)
    sent = source_lines(root, SENT_ENTRIES)
    disk = source_lines(root, PERSISTENCE)
    print(
        f"date          {datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    )
    print(f"newest        {archive.name}")
    print(f"requires      {'; '.join(requirements(root)) or 'nothing'}")
    for installation in installations:
        print(
            f"install       {installation.mode}: {'succeeds' if installation.succeeded else 'FAILS'} ({installation.seconds:.0f} s)"
        )
        for line in installation.last_lines if not installation.succeeded else ():
            print(f"              | {line}")
    for name, fields in messages.items():
        if "Request" in name or name == "Log":
            print(f"wire          {name}({', '.join(fields)})")
    print(f"group id      {', '.join(groups) or 'none: one Raft group per server address'}")
    print(f"log writes    {len(log_writes)} places where code appends to a log or tracks a follower's position")
    print(f"entries sent  {'; '.join(sent) or 'none'}")
    print(f"persistence   {len(disk)} places where code writes to a disk")
    for line in [*log_writes, *disk]:
        print(f"              | {line}")


def main() -> int:
    """Fetch the package, try to install it, read its source, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--build-seconds",
        type=float,
        default=300.0,
        help="limit for building its pinned dependencies from source; 0 skips",
    )
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="raftmq-aioraft-"))
    try:
        venv.create(work / "venv", with_pip=True)
        python = work / "venv" / "bin" / "python"
        code, output = run(
            [str(python), "-m", "pip", "download", "-q", "--no-deps", "-d", str(work / "dist"), PACKAGE], 180
        )
        if code:
            print(f"cannot fetch {PACKAGE}: {output.strip().splitlines()[-1]}", file=sys.stderr)
            return 1
        archive = next((work / "dist").iterdir())
        root = unpack(archive, work / "source")
        installations = [try_install(python, "from wheels only", ["--only-binary=:all:"], 180)]
        if not installations[0].succeeded and options.build_seconds:
            installations.append(try_install(python, "building from source", [], options.build_seconds))
        report(archive, root, installations)
        return 0
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
