"""Measure Spark's source and sink: ``python -m bench.spark [--only sink] [--records N] [--rounds 3] [--codec none] [--output results.json]``.

It equals ``python -m bench --only spark``, with a choice of the figures, the number of records and the codec. Run it when nothing else runs.
"""

import argparse
import json
import sys
from pathlib import Path

from bench.machine import facts, probe_disk
from bench.report import Report, rows_of, table
from bench.spark.runs import NAMES, RECORDS, figures, measure


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--only", action="append", choices=NAMES, help="figure to measure; repeatable; default: all")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--codec", default="none", choices=("none", "lz4", "zstd", "snappy"), help="codec of the records that are read"
    )
    parser.add_argument("--output", type=Path, default=Path(".venv/bench-spark.json"))
    found = parser.parse_args()
    machine = facts(probe_disk()) | {"records": found.records, "codec": found.codec}

    def tell(text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    samples = measure(found.rounds, tell, found.records, found.codec, found.only or NAMES)
    known = {"spark": figures()}
    rows = rows_of(known, samples)
    print(table(known, rows))
    found.output.write_text(json.dumps(Report(machine, {}, rows, samples, [], []).as_json(), indent=1) + "\n")
    print(f"written: {found.output}")


if __name__ == "__main__":
    main()
