"""Damage the files of a broker that does not run: flip bits, cut files off, remove a directory.

The caller passes the random generator: the same generator damages the same bytes of the same file.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import lmdb

PAGE_BYTES = 4096
STATE_SUFFIX = ".state.mdb"
_TRANSACTION_AT = 144
_HIGH_BIT = 1 << 40


def replica_files(data_dir: Path, *, metadata: bool = False) -> list[Path]:
    """Return the files of the partitions' replicas, or of the metadata replica. A replica of a queue has a log and a state file."""
    return sorted(path for path in (data_dir / "groups").glob("*.mdb") if path.name.startswith("0-") == metadata)


def flip_bytes(path: Path, chance: random.Random, count: int = 1) -> list[int]:
    """Flip one bit in each of `count` bytes anywhere in the file, also in the database's own pages. Return their positions."""
    places = sorted(chance.sample(range(path.stat().st_size), count))
    with path.open("r+b") as file:
        for place in places:
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ 1 << chance.randrange(8)]))
    return places


def log_files(data_dir: Path) -> list[Path]:
    """Return the files with the logs of the partitions' replicas."""
    return [path for path in replica_files(data_dir) if not path.name.endswith(STATE_SUFFIX)]


def flip_in_newest_row(path: Path) -> int:
    """Flip one bit in the middle of the newest log row, or of the last row of a queue's state, in each of its copies in the file.

    Return the number of copies. It is 0 for a file without rows, such as that of a replica that was only just created.
    """
    row = _newest_row(path)
    if not row:
        return 0
    content = bytearray(path.read_bytes())
    flipped, at = 0, content.find(row)
    while at >= 0:
        content[at + len(row) // 2] ^= 1
        flipped += 1
        at = content.find(row, at + 1)
    path.write_bytes(content)
    return flipped


def _newest_row(path: Path) -> bytes:
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, max_dbs=3) as environment:
        database = environment.open_db(b"rows" if path.name.endswith(STATE_SUFFIX) else b"log", create=False)
        with environment.begin(db=database) as transaction, transaction.cursor() as cursor:
            return bytes(cursor.value()) if cursor.last() else b""


def truncate(path: Path, chance: random.Random) -> int:
    """Cut the file off somewhere after its first two pages, as a lost write of its length does. Return the new size."""
    size = path.stat().st_size
    kept = chance.randrange(2 * PAGE_BYTES, max(size, 2 * PAGE_BYTES + 1))
    with path.open("r+b") as file:
        file.truncate(kept)
    return kept


def turn_back(path: Path) -> None:
    """Undo the last commit of a database: flip one bit in the older of its two meta pages, so that LMDB takes it for the newer one.

    The transaction id is at byte 144 of each: after a page header of 16 bytes, magic, version, address, map size, two tables and last page.
    """
    with path.open("r+b") as file:
        ids: list[int] = []
        for page in range(2):
            file.seek(page * PAGE_BYTES + _TRANSACTION_AT)
            ids.append(int.from_bytes(file.read(8), "little"))
        older = ids.index(min(ids))
        file.seek(older * PAGE_BYTES + _TRANSACTION_AT)
        file.write((ids[older] ^ _HIGH_BIT).to_bytes(8, "little"))


def wipe(data_dir: Path) -> None:
    """Remove the data directory."""
    shutil.rmtree(data_dir)
