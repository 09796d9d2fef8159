"""Tell whether the committed generated files are what the generators write now. Changes nothing. Usage: python -m scripts.check_generated"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def differing(fresh: Path, committed: Path) -> list[str]:
    """Names of files in `fresh` that `committed` lacks or has with other contents."""
    return [
        str((committed / new.name).relative_to(ROOT))
        for new in sorted(fresh.iterdir())
        if not (committed / new.name).exists() or (committed / new.name).read_bytes() != new.read_bytes()
    ]


def stale_protobuf() -> list[str]:
    """Protobuf modules that differ from what protoc makes of the .proto files."""
    with tempfile.TemporaryDirectory() as fresh:
        environment = os.environ | {"PYTHON": sys.executable}
        subprocess.run([str(ROOT / "scripts" / "generate_protobuf.sh"), fresh], check=True, env=environment)
        return differing(Path(fresh), ROOT / "api" / "proto")


def stale_docs() -> list[str]:
    """Reference pages that differ from what the code says."""
    with tempfile.TemporaryDirectory() as fresh:
        command = [sys.executable, "-m", "scripts.generate_docs", fresh]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        return differing(Path(fresh), ROOT / "docs" / "reference")


def main() -> int:
    """Print what is stale; 0 when nothing is."""
    stale = [*stale_protobuf(), *stale_docs()]
    for name in stale:
        print(f"{name} is not what its generator writes; run `make fix`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
