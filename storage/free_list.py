"""Reads from an LMDB file which of its pages are free, because py-lmdb does not report it.

LMDB keeps a database of free pages, with a row for each transaction that freed some. The caller is the file's only writer and
has no transaction open, so the file does not change during the read. The list is used only if it accounts for every page.
Source: LMDB 0.9, mdb.c (`mdb_page_alloc`).
"""

from __future__ import annotations

import os
import struct
import sys
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from raftmq.storage.lmdb_pages import (
    BIG_VALUE,
    BRANCH,
    DATA_VERSION,
    DEPTH_MAX,
    LEAF,
    MAGIC,
    META_BYTES,
    META_PAGES,
    NO_PAGE,
    NODE,
    OVERFLOW,
    PAGE_HEADER,
    read_meta_page,
)

_NUMBER = struct.Struct("=Q")


class FreeListError(Exception):
    """The file's free list is not as this module expects it and must not be used."""


class FreeRecord(NamedTuple):
    """The pages that one transaction freed and that are still free."""

    transaction_id: int
    page_count: int
    position: int
    """Position in the file of the first page number. The others follow it."""


class FreeList(NamedTuple):
    """The list as of the last commit."""

    transaction_id: int
    """The transaction of the last commit."""
    page_bytes: int
    page_count: int
    """All pages of the file."""
    own_pages: int
    """Pages of the list itself."""
    records: tuple[FreeRecord, ...]
    """Oldest first."""

    def check(self, used_pages: int) -> None:
        """Raise `FreeListError` unless the list accounts for every page. `used_pages` counts the pages of all databases."""
        known = META_PAGES + used_pages + self.own_pages + sum(record.page_count for record in self.records)
        if known != self.page_count:
            raise FreeListError(f"{known} pages are accounted for, but the file has {self.page_count}")


def read_free_list(descriptor: int) -> FreeList:
    """Read the free list of an open file. Raises `FreeListError`."""
    newest: FreeList | None = None
    root = NO_PAGE
    for number in range(META_PAGES):
        page_bytes = newest.page_bytes if newest is not None else 0
        found, found_root = _read_meta(os.pread(descriptor, META_BYTES, number * page_bytes))
        if newest is None or found.transaction_id > newest.transaction_id:
            newest, root = found, found_root
    assert newest is not None
    if root == NO_PAGE:
        return newest
    return newest._replace(records=tuple(_walk(descriptor, newest, root, 0)))


def _read_meta(page: bytes) -> tuple[FreeList, int]:
    if len(page) < META_BYTES:
        raise FreeListError("a meta page is cut off")
    meta = read_meta_page(page)
    if (meta.magic, meta.version) != (MAGIC, DATA_VERSION) or sys.maxsize != (1 << 63) - 1:
        raise FreeListError(f"format {meta.magic:#x}, version {meta.version} is not known")
    return FreeList(meta.transaction_id, meta.free.pad, meta.last_page + 1, meta.free.pages, ()), meta.free.root


def _walk(descriptor: int, free_list: FreeList, number: int, depth: int) -> Iterator[FreeRecord]:
    page_bytes = free_list.page_bytes
    page = os.pread(descriptor, page_bytes, number * page_bytes)
    if len(page) < page_bytes or depth > DEPTH_MAX:
        raise FreeListError(f"page {number} cannot be read, or the tree is too deep")
    own_number, _, flags, lower, _ = PAGE_HEADER.unpack_from(page)
    if own_number != number or flags & (BRANCH | LEAF) not in (BRANCH, LEAF):
        raise FreeListError(f"page {number} is not a page of a tree")
    for start in struct.unpack_from(f"={(lower - PAGE_HEADER.size) // 2}H", page, PAGE_HEADER.size):
        low, high, node_flags, key_bytes = NODE.unpack_from(page, start)
        if flags & BRANCH:
            yield from _walk(descriptor, free_list, low | high << 16 | node_flags << 32, depth + 1)
            continue
        (transaction_id,) = _NUMBER.unpack_from(page, start + NODE.size)
        data = start + NODE.size + key_bytes
        if node_flags & BIG_VALUE:
            (overflow,) = _NUMBER.unpack_from(page, data)
            position = overflow * page_bytes + PAGE_HEADER.size
            _check_overflow(os.pread(descriptor, PAGE_HEADER.size, overflow * page_bytes), overflow)
            (count,) = _NUMBER.unpack(os.pread(descriptor, _NUMBER.size, position))
        else:
            position = number * page_bytes + data
            (count,) = _NUMBER.unpack_from(page, data)
        yield FreeRecord(transaction_id, count, position + _NUMBER.size)


def _check_overflow(header: bytes, number: int) -> None:
    own_number, _, flags, _, _ = PAGE_HEADER.unpack(header)
    if own_number != number or not flags & OVERFLOW:
        raise FreeListError(f"page {number} is not an overflow page")


def runs(descriptor: int, free_list: FreeList, record: FreeRecord) -> Iterator[tuple[int, int]]:
    """Yield runs of neighbouring pages of a record as (first page, count), from the file's end to its start."""
    pages = array("Q", os.pread(descriptor, record.page_count * _NUMBER.size, record.position))
    if len(pages) != record.page_count or not pages or pages[0] >= free_list.page_count or pages[-1] < META_PAGES:
        raise FreeListError(f"the record of transaction {record.transaction_id} names pages outside of the file")
    start = 0
    while start < len(pages):
        end = _end_of_run(pages, start)
        yield pages[end - 1], end - start
        start = end


def _end_of_run(pages: array[int], start: int) -> int:
    """Find the end of a run of falling page numbers. Most runs are long, so it leaps ahead and then bisects."""
    first, leap, known = pages[start], 1, start
    while known + leap < len(pages) and first - pages[known + leap] == known + leap - start:
        known += leap
        leap *= 2
    low, high = known, min(known + leap, len(pages))
    while high - low > 1:
        middle = (low + high) // 2
        if first - pages[middle] == middle - start:
            low = middle
        else:
            high = middle
    return low + 1
