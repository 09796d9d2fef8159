"""Damage to the files of a broker that does not run: bytes that flipped, ends that are missing, a directory that is empty.

Must be handed its choices: the same generator damages the same bytes of the same file.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import lmdb

PAGE_BYTES = 4096
_TRANSACTION_AT = 144
_HIGH_BIT = 1 << 40


def replica_files(data_dir: Path, *, metadata: bool = False) -> list[Path]:
    """The files of partitions' replicas, or of the metadata's."""
    return sorted(path for path in (data_dir / "groups").glob("*.mdb") if path.name.startswith("0-") == metadata)


def flip_bytes(path: Path, chance: random.Random, count: int = 1) -> list[int]:
    """Flip one bit in each of so many bytes anywhere in the file, the databases' own pages included; returns where."""
    places = sorted(chance.sample(range(path.stat().st_size), count))
    with path.open("r+b") as file:
        for place in places:
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ 1 << chance.randrange(8)]))
    return places


def flip_in_newest_row(path: Path) -> int:
    """Flip one bit in the middle of the newest row of the log, in every copy of it that the file holds; returns how many."""
    row = _newest_row(path)
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
        database = environment.open_db(b"log", create=False)
        with environment.begin(db=database) as transaction, transaction.cursor() as cursor:
            if not cursor.last():
                raise AssertionError(f"{path} has no row to damage")
            return bytes(cursor.value())


def truncate(path: Path, chance: random.Random) -> int:
    """Cut the file off somewhere behind its two first pages, as a lost write of its length does; returns the new size."""
    size = path.stat().st_size
    kept = chance.randrange(2 * PAGE_BYTES, max(size, 2 * PAGE_BYTES + 1))
    with path.open("r+b") as file:
        file.truncate(kept)
    return kept


def turn_back(path: Path) -> None:
    """Flip one bit in the older of the two first pages of a database, so that LMDB takes it for the newer one: the last commit is undone.

    The transaction id is 144 bytes into each: a page header of 16, then magic, version, address, map size, two tables and the last page.
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
    """The disk is new and empty."""
    shutil.rmtree(data_dir)
