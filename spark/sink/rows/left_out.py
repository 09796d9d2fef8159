"""Find the rows that several tasks left out for one record that an earlier run of the batch had written.

Example: an earlier run wrote a row once. Two tasks of this run have an equal row each, and each of them leaves its own out. One copy is
missing then, and the driver, which knows the rows that all tasks have left out, writes it.

Pure. Must not import Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING

from raftmq.spark.sink.rows.hashes import HASH_BYTES

if TYPE_CHECKING:
    import pyarrow as pa


def repeated_hashes(left_out: Iterable[Mapping[tuple[str, int], bytes]]) -> dict[tuple[str, int], dict[bytes, int]]:
    """Return the hashes that were left out more than once, with their counts, by topic and partition.

    `left_out` has the hashes of each task, joined. Only a place with hashes of two tasks is looked through: one task counts by itself.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    gathered: dict[tuple[str, int], list[bytes]] = {}
    for of_task in left_out:
        for place, joined in of_task.items():
            gathered.setdefault(place, []).append(joined)
    found: dict[tuple[str, int], dict[bytes, int]] = {}
    for place, parts in sorted(gathered.items()):
        if len(parts) < 2:
            continue
        joined = b"".join(parts)
        hashes = pa.Array.from_buffers(pa.binary(HASH_BYTES), len(joined) // HASH_BYTES, [None, pa.py_buffer(joined)])
        counted = hashes.value_counts()
        is_repeated = pc.greater(counted.field("counts"), 1)  # pyright: ignore[reportAttributeAccessIssue]
        repeated = counted.filter(is_repeated).to_pylist()
        if repeated:
            found[place] = {each["values"]: each["counts"] for each in repeated}
    return found


def missing_rows(
    counts: Mapping[bytes, int], written: Iterable[tuple[pa.RecordBatch, list[bytes]]]
) -> Iterator[pa.RecordBatch]:
    """Return the rows that were left out more often than they were written, each as often as that, in the order of their hashes.

    Args:
        counts: How often rows were left out, by hash.
        written: The rows that the earlier runs wrote, and their hashes.
    """
    written_counts: Counter[bytes] = Counter()
    contents: dict[bytes, pa.RecordBatch] = {}
    for rows, hashes in written:
        for number, hashed in enumerate(hashes):
            if hashed in counts:
                written_counts[hashed] += 1
                contents.setdefault(hashed, rows.slice(number, 1))
    for hashed, row in sorted(contents.items(), key=itemgetter(0)):
        for _ in range(counts[hashed] - written_counts[hashed]):
            yield row
