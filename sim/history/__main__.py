"""`python -m sim.history FILE…`: judge the files of one run and print each anomaly with the events that prove it.

Exit codes: 0: no anomaly. 1: an anomaly was found, or something is undecided. 2: a file is not a history or cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sim.history.checker import judge_files
from sim.history.events import HistoryError

CLEAN, FOUND, UNREADABLE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse arguments and judge."""
    parser = argparse.ArgumentParser(prog="python -m sim.history", description=__doc__)
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="file of JSON lines. Several files are one run and are merged by time"
    )
    parser.add_argument("--each", action="store_true", help="judge each file as a run of its own")
    given = parser.parse_args(arguments)
    runs = [[name] for name in given.files] if given.each else [given.files]
    code = CLEAN
    for files in runs:
        try:
            verdict = judge_files(files)
        except (HistoryError, OSError) as error:
            print(f"not a history: {error}", file=sys.stderr)
            code = UNREADABLE
            continue
        if given.each:
            print(f"{files[0]}:")
        print(verdict.report())
        if not verdict.is_clean:
            code = max(code, FOUND)
    return code


if __name__ == "__main__":
    sys.exit(main())
