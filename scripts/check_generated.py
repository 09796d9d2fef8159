"""Check that the committed generated files are current. Changes nothing. Usage: python -m scripts.check_generated"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts import chart, dashboards

ROOT = Path(__file__).resolve().parent.parent


def differing(fresh: Path, committed: Path) -> list[str]:
    """Return the names of files in `fresh` that `committed` lacks or has with other contents."""
    return [
        str((committed / new.name).relative_to(ROOT))
        for new in sorted(fresh.iterdir())
        if not (committed / new.name).exists() or (committed / new.name).read_bytes() != new.read_bytes()
    ]


def stale_protobuf() -> list[str]:
    """Return the protobuf modules that differ from protoc's present output."""
    with tempfile.TemporaryDirectory() as fresh:
        environment = os.environ | {"PYTHON": sys.executable}
        subprocess.run([str(ROOT / "scripts" / "generate_protobuf.sh"), fresh], check=True, env=environment)
        return differing(Path(fresh), ROOT / "api" / "proto")


def stale_docs() -> list[str]:
    """Return the reference pages that differ from the generator's present output."""
    with tempfile.TemporaryDirectory() as fresh:
        command = [sys.executable, "-m", "scripts.generate_docs", fresh]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        return differing(Path(fresh), ROOT / "docs" / "reference")


def main() -> int:
    """Print the names of stale files. Return 0 when there are none, otherwise 1."""
    stale = [*stale_protobuf(), *stale_docs()]
    written = {**dashboards.generated(), **chart.generated()}
    stale += [
        str(file) for file, text in written.items() if not (ROOT / file).exists() or (ROOT / file).read_text() != text
    ]
    for name in stale:
        print(f"{name} differs from its generator's output; run `make fix`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
