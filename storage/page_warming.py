"""Reads the pages that the opening of a replica's file will need, before LMDB maps the file.

Touching a page through the map that is not in memory causes a page fault, and the system then reads as many bytes around it as the
volume's read-ahead says: up to megabytes for 4 KiB. Therefore the pages are read here first, by their position in the file and
without read-ahead. Neighbouring pages take one read, and reads do not hold the GIL, so that several files are read in parallel.

Warming is optional and never decides whether a file is intact. Any problem with the file ends the warming without an error, and the
checks of the opening report it.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import lmdb
from raftmq.storage import log_scan
from raftmq.storage.entry_codec import HEADER, CodecError, decode_key, encode_key
from raftmq.storage.lmdb_pages import (
    BIG_VALUE,
    BRANCH,
    DEPTH_MAX,
    LEAF,
    META_BYTES,
    META_PAGES,
    NO_PAGE,
    NODE,
    OVERFLOW,
    PAGE_HEADER,
    PAGE_SIZES,
    Tree,
    child_page,
    leaf_node,
    node_key,
    node_places,
    open_for_looks,
    read_meta_page,
    read_tree,
    value_page,
    value_pages,
)
from raftmq.storage.log_scan import Borders, find_border
from raftmq.storage.meta_pages import HEAD_BYTES
from raftmq.storage.replica_codec import META_KEY, CommitNote, ReplicaMeta, decode_meta, decode_note

WARM_BYTES_MAX = 16 * 1024 * 1024
"""Maximum number of bytes read of one file. Usually it is below 2 MiB: the tail of the log, two rows for each term, and the state rows.
Further pages are read when they are touched."""
_BORDERS_MAX = 64
"""Maximum number of term borders to look for, at a millisecond each. A log has one for each change of its leader."""
_GAP_PAGES = 16
"""Two runs of pages with at most this many unneeded pages between them take one read: commits put tree pages between large values."""
_LEAVES_MAX = 32
"""Maximum number of neighbouring leaves per read. It grows with each read, since only the leaves show how many are needed."""
_ADVICE_BYTES = 128 * 1024
"""Size of one `posix_fadvise` call: the system may shorten a larger one to its read-ahead."""

_Run = tuple[int, int]
"""The number of the first of several neighbouring pages, and their count."""


class _EndError(Exception):
    """Ends the warming: the file is not as expected, or enough of it was read."""


def warm_opening(path: Path) -> Borders:
    """Read the pages that opening a closed file with `Verify.TAIL` will need. Blocks for as long as the disk takes.

    Returns:
        The indexes at which terms other than the first seem to start in the log, see `scan`.
    """
    if lmdb.version() >= (1, 0) or not hasattr(os, "posix_fadvise"):
        return ()
    borders: list[int] = []
    with suppress(OSError, _EndError, CodecError, LookupError, struct.error):
        descriptor = open_for_looks(path)
        try:
            if os.fstat(descriptor).st_size > HEAD_BYTES:  # the check of a shorter file has read all of it
                _Warming(descriptor, borders).run()
        finally:
            os.close(descriptor)
    return tuple(borders)


class _Page(NamedTuple):
    """A page of a tree, or the first one of a large value."""

    data: bytes
    places: tuple[int, ...]
    """The positions in the page at which its nodes begin."""


class _Pages:
    """Pages of a file, each read once."""

    def __init__(self, descriptor: int, page_bytes: int, page_count: int) -> None:
        self._descriptor = descriptor
        self._page_bytes = page_bytes
        self._page_count = page_count
        self._bytes_left = WARM_BYTES_MAX
        self._read: dict[int, bytes] = {}
        self._decoded: dict[int, _Page] = {}

    def page(self, number: int, kind: int) -> _Page:
        """Return a page, which must be of this kind."""
        found = self._decoded.get(number)
        if found is None:
            data = self._read.pop(number, None)
            if data is None:
                self._pay(number, 1)
                data = os.pread(self._descriptor, self._page_bytes, number * self._page_bytes)
            itself, _, flags, _, _ = PAGE_HEADER.unpack_from(data)
            if itself != number or flags != kind:
                raise _EndError
            found = self._decoded[number] = _Page(data, () if kind == OVERFLOW else node_places(data))
        return found

    def fetch(self, numbers: Iterable[int]) -> None:
        """Read pages for later calls of `page`."""
        size = self._page_bytes
        for first, count in self._merged((number, 1) for number in numbers if number not in self._decoded):
            found = os.pread(self._descriptor, count * size, first * size)
            for at in range(count):
                self._read[first + at] = found[at * size : (at + 1) * size]

    def advise(self, runs: Iterable[_Run]) -> None:
        """Have the system read pages into memory, without waiting for them."""
        for first, count in self._merged(runs):
            start, end = first * self._page_bytes, (first + count) * self._page_bytes
            for at in range(start, end, _ADVICE_BYTES):
                os.posix_fadvise(self._descriptor, at, min(_ADVICE_BYTES, end - at), os.POSIX_FADV_WILLNEED)

    def _merged(self, runs: Iterable[_Run]) -> Iterator[_Run]:
        """Yield the runs in the order of the file, and merge runs that are near each other."""
        first = end = -1
        for start, count in sorted(runs):
            if first >= 0 and start - end > _GAP_PAGES:
                yield self._pay(first, end - first)
                first = -1
            if first < 0:
                first = start
            end = max(end, start + count)
        if first >= 0:
            yield self._pay(first, end - first)

    def _pay(self, first: int, count: int) -> _Run:
        """Subtract a run from the bytes that may be read, and check that it is within the file."""
        self._bytes_left -= count * self._page_bytes
        if first < META_PAGES or first + count > self._page_count or self._bytes_left < 0:
            raise _EndError
        return first, count


class _Warming:
    """The reading of one open file."""

    def __init__(self, descriptor: int, borders: list[int]) -> None:
        self._descriptor = descriptor
        self._borders = borders
        """Filled during the reading, so that the borders found so far remain when it ends early."""
        self._pages: _Pages
        self._page_bytes = 0
        self._large: list[_Run] = []
        """Pages of large values that the opening will read."""
        self._walked: set[int] = set()
        self._row_page = _Page(b"", ()), 0
        """The leaf page of the last row that was looked up, and the index of the page's first row."""

    def run(self) -> None:
        """Read the pages that the opening reads, in the same order."""
        trees = self._open_trees()
        meta, note = self._read_meta(trees[b"meta"])
        log = trees[b"log"]
        if log.root != NO_PAGE:
            self._take_ends(log, meta, note.verified_index)
            self._take_borders(log, meta)
        self._take_state(trees[b"state"])

    def _open_trees(self) -> dict[bytes, Tree]:
        """Return the roots of the databases as of the last commit."""
        first = read_meta_page(os.pread(self._descriptor, META_BYTES, 0))
        self._page_bytes = first.free.pad
        if self._page_bytes not in PAGE_SIZES:
            raise _EndError
        newest = max(
            first,
            read_meta_page(os.pread(self._descriptor, META_BYTES, self._page_bytes)),
            key=lambda meta: meta.transaction_id,
        )
        page_count = min(newest.last_page + 1, os.fstat(self._descriptor).st_size // self._page_bytes)
        self._pages = _Pages(self._descriptor, self._page_bytes, page_count)
        page = self._pages.page(newest.main.root, LEAF)
        nodes = [leaf_node(page.data, at) for at in page.places]
        trees = {node.key: read_tree(page.data, node.value_at) for node in nodes}
        if not {b"log", b"meta", b"state"} <= trees.keys() or any(tree.depth > DEPTH_MAX for tree in trees.values()):
            raise _EndError
        return trees

    def _read_meta(self, tree: Tree) -> tuple[ReplicaMeta, CommitNote]:
        leaf = self._pages.page(tree.root, LEAF)
        for at in leaf.places:
            node = leaf_node(leaf.data, at)
            if node.key == META_KEY:
                row = leaf.data[node.value_at : node.value_at + node.size]
                return decode_meta(row), decode_note(row)
        raise _EndError

    # ------------------------------------------------------------------------------------------------------ rows to read

    def _take_ends(self, log: Tree, meta: ReplicaMeta, verified_index: int) -> None:
        """Read the first rows, and the tail back to the row before the checked ones."""
        first = meta.position.index + 1
        leaf = self._leaf(log, b"")
        self._take(leaf, leaf.places[0])
        if first <= meta.last_index:
            self._take(*self._row(log, first))
        self._take_tail(log, max(first, verified_index + 1))
        self._advise()

    def _take_tail(self, log: Tree, least: int) -> None:
        """Read the rows that are checked one by one, and the row before them."""
        size = rows = 0
        for leaf in self._leaves_backwards(log.root, log.depth):
            index = decode_key(node_key(leaf.data, leaf.places[0])) + len(leaf.places)
            for at in reversed(leaf.places):
                index -= 1
                self._take(leaf, at)
                if index < least or size >= log_scan.TAIL_BYTES or rows >= log_scan.TAIL_ROWS_MAX:
                    return
                low, high, _, _ = NODE.unpack_from(leaf.data, at)
                size += low | high << 16
                rows += 1

    def _take_borders(self, log: Tree, meta: ReplicaMeta) -> None:
        """Read both rows at each border between terms."""
        low, last = meta.position.index + 1, int(meta.last_index)
        if last <= low:
            return
        term_at = partial(self._term_at, log)
        term, last_term = term_at(low), term_at(last)
        while term < last_term and len(self._borders) < _BORDERS_MAX:
            high = find_border(term_at, term, low, last)
            for index in (high - 1, high):
                self._take(*self._row(log, index))
            self._borders.append(high)
            term, low = term_at(high), high
        self._advise()

    def _take_state(self, state: Tree) -> None:
        """Read every state row: the state machine is restored from them."""
        if state.root == NO_PAGE:
            return
        for leaf in self._leaves_backwards(state.root, state.depth):
            if state.overflow_pages:
                for at in leaf.places:
                    self._take(leaf, at)
        self._advise()

    def _take(self, leaf: _Page, at: int) -> None:
        """Record the pages of a row's value if it has pages of its own."""
        if NODE.unpack_from(leaf.data, at)[2] & BIG_VALUE:
            node = leaf_node(leaf.data, at)
            self._large.append((value_page(leaf.data, node), value_pages(node.size, self._page_bytes)))

    def _advise(self) -> None:
        self._pages.advise(self._large)
        self._large.clear()

    # ------------------------------------------------------------------------------------------------------ looking up

    def _leaves_backwards(self, number: int, depth: int) -> Iterator[_Page]:
        if number in self._walked:  # a damaged tree may have a cycle
            raise _EndError
        self._walked.add(number)
        if depth <= 1:
            yield self._pages.page(number, LEAF)
            return
        branch = self._pages.page(number, BRANCH)
        children = [child_page(branch.data, at) for at in reversed(branch.places)]
        start, count = 0, 1
        while start < len(children):
            part = children[start : start + count]
            self._pages.fetch(part)
            for child in part:
                yield from self._leaves_backwards(child, depth - 1)
            start, count = start + count, min(4 * count, _LEAVES_MAX)

    def _leaf(self, tree: Tree, key: bytes) -> _Page:
        """Return the leaf page that holds a key, if any page does."""
        number = tree.root
        for _ in range(tree.depth - 1):
            branch = self._pages.page(number, BRANCH)
            # the first node of a branch page has no key: it covers all keys below the second node's key
            place = bisect_right(branch.places, key, lo=1, key=partial(node_key, branch.data))
            number = child_page(branch.data, branch.places[place - 1])
        return self._pages.page(number, LEAF)

    def _row(self, log: Tree, index: int) -> tuple[_Page, int]:
        """Find the row of an entry: its page and its position. The keys of a log have no gap, so a page needs no search."""
        leaf, first = self._row_page
        if not first <= index < first + len(leaf.places):
            leaf = self._leaf(log, encode_key(index))
            first = decode_key(node_key(leaf.data, leaf.places[0]))
            self._row_page = leaf, first
        if index < first or node_key(leaf.data, leaf.places[index - first]) != encode_key(index):
            raise _EndError
        return leaf, leaf.places[index - first]

    def _term_at(self, log: Tree, index: int) -> int:
        """Return the term of an entry. Only the first page of a large entry is read."""
        leaf, at = self._row(log, index)
        node = leaf_node(leaf.data, at)
        if not node.flags & BIG_VALUE:
            return int(HEADER.unpack_from(leaf.data, node.value_at)[1])
        return int(
            HEADER.unpack_from(self._pages.page(value_page(leaf.data, node), OVERFLOW).data, PAGE_HEADER.size)[1]
        )
