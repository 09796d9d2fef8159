"""List the files of the checkout."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def tracked_files() -> list[Path]:
    """Return the files that git tracks or would add. Without git (an unpacked archive), return the whole tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    skipped = re.compile(r"\.venv|build|site|__pycache__|\..*_cache|\.hypothesis|.*\.egg-info")
    return [
        path
        for path in ROOT.rglob("*")
        if path.is_file() and not any(map(skipped.fullmatch, path.relative_to(ROOT).parts))
    ]
