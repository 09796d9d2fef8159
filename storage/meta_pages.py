"""Checks LMDB's two meta pages, which have no checksum, against each other and against the pages to which they point.

A file has two commits: transaction N writes the meta page N % 2, and the pages of the commit before it are reused only by
N + 2. LMDB uses the meta page with the larger number. One flipped bit in that number, or in the page number of a root, would
undo acknowledged commits while everything else in the file is intact. Therefore every transaction here writes its own number
into a row, and both commits are looked up in the bytes of the file. Nothing is mapped, so that no damage kills the process.

The states that a crash can leave pass the check: a commit without its meta page is no commit, and the next transaction
overwrites the older of the two meta pages.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import lmdb
from raftmq.storage.entry_codec import CodecError
from raftmq.storage.file_check import walk_short_file
from raftmq.storage.lmdb_pages import (
    BIG_VALUE,
    BRANCH,
    DATA_VERSION,
    DEPTH_MAX,
    LEAF,
    MAGIC,
    META,
    META_BYTES,
    META_PAGES,
    NO_PAGE,
    OVERFLOW,
    PAGE_HEADER,
    PAGE_SIZES,
    SUB_TREE,
    TREE,
    LeafNode,
    Tree,
    child_page,
    leaf_node,
    node_places,
    open_for_looks,
    read_meta_page,
    read_tree,
    value_page,
    value_pages,
)

_FREE_FLAGS = 0x4008
"""Keys are integers, and the file is not a directory: the permanent flags of every file of ours."""
_FREE_LEAVES_MAX = 64
"""Longest free list, in pages, that is read to count a file's pages, which takes about ten milliseconds. A file with a longer list has
hundreds of megabytes free in small pieces. Only `doctor` counts the pages of such a file."""

HEAD_BYTES = 64 * 1024
"""Bytes from the beginning of a file that are read in one call. The file of a replica with few entries is no longer."""

Rows = Mapping[bytes, bytes]


class _Meta(NamedTuple):
    """One of the two meta pages."""

    slot: int
    page_bytes: int
    free: Tree
    main: Tree
    last_page: int
    transaction_id: int


def check_commits(
    path: Path, database: bytes, id_in: Callable[[Rows], int | None], *, may_be_new: bool = False
) -> None:
    """Check both commits of a closed or idle file.

    Args:
        path: The file.
        database: A small database of the file. It has one page, and a row that every transaction writes.
        id_in: Returns the number of the transaction that wrote these rows of the database, or None if their format is unknown.
            Raises `CodecError` for rows that no transaction writes.
        may_be_new: Whether the file is created in place, so that a crash may have left it without transactions.

    Raises:
        CodecError: A meta page is not as LMDB wrote it, or the file has lost pages to which one of them points.
        OSError: The file cannot be read.
    """
    _checked_bytes(path, database, id_in, may_be_new=may_be_new)


def _checked_bytes(path: Path, database: bytes, id_in: Callable[[Rows], int | None], *, may_be_new: bool) -> int:
    """Check both commits. Return the size of the file once all its pages were written, or 0 if the layout of pages is unknown."""
    if lmdb.version() >= (1, 0):
        return 0  # another layout of pages, and checksums of its own
    descriptor = open_for_looks(path)
    try:
        metas = _Commits(descriptor).check(database, id_in, may_be_new=may_be_new)
    except struct.error as error:
        raise CodecError(f"a page has impossible content: {error}") from error
    finally:
        os.close(descriptor)
    return _bytes_of(metas)


def _bytes_of(metas: tuple[_Meta, _Meta]) -> int:
    return max((meta.last_page + 1) * meta.page_bytes for meta in metas)


def check_pages(path: Path, database: bytes, id_in: Callable[[Rows], int | None], *, may_be_new: bool = False) -> None:
    """Check a file before it is mapped: both commits, as `check_commits` does, and that the file has all their pages.

    Reading a page past the end of the file through the map would raise SIGBUS, so a file that seems short is walked unmapped.
    """
    all_bytes = _checked_bytes(path, database, id_in, may_be_new=may_be_new)
    if path.stat().st_size < all_bytes:
        problem = walk_short_file(path)
        if problem is not None:
            raise CodecError(problem)


def pages_bytes(path: Path) -> int:
    """Return the size of a file all of whose pages were written. The file must pass `check_commits`, whose errors this raises."""
    if lmdb.version() >= (1, 0):
        return 0
    descriptor = open_for_looks(path)
    try:
        metas = _Commits(descriptor).metas()
    finally:
        os.close(descriptor)
    return _bytes_of(metas)


class _Commits:
    """The two commits of an open file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._file_bytes = os.fstat(descriptor).st_size
        self._head = os.pread(descriptor, min(HEAD_BYTES, self._file_bytes), 0)
        self._page_bytes = 0
        self._decoded: dict[int, list[LeafNode]] = {}
        """The rows of leaf pages. Both commits share most of them."""

    def metas(self) -> tuple[_Meta, _Meta]:
        first = self._meta(0, 0)
        self._page_bytes = first.page_bytes
        second = self._meta(1, first.page_bytes)
        if first.page_bytes != second.page_bytes:
            raise CodecError(f"the meta pages name pages of {first.page_bytes} and {second.page_bytes} bytes")
        return first, second

    def check(self, database: bytes, id_in: Callable[[Rows], int | None], *, may_be_new: bool) -> tuple[_Meta, _Meta]:
        metas = self.metas()
        numbers = tuple(meta.transaction_id for meta in metas)
        if numbers != (0, 0) and (numbers[0] % 2 != 0 or numbers[1] % 2 != 1 or abs(numbers[0] - numbers[1]) != 1):
            raise CodecError(
                f"the meta pages are of the transactions {numbers[0]} and {numbers[1]}, which is impossible"
            )
        for meta in metas:
            self._check_root(meta, meta.free, "free list")
            self._check_root(meta, meta.main, "root")
            self._check_free_list(meta)
            if may_be_new and meta.transaction_id == 0:
                continue
            written_by = id_in(self._rows(meta, database))
            if written_by is not None and written_by != meta.transaction_id:
                raise CodecError(
                    f"meta page {meta.slot} is of transaction {meta.transaction_id}, but points to the tree of transaction "
                    f"{written_by}"
                )
        return metas

    # ------------------------------------------------------------------------------------------------------ pages

    def _read(self, at: int, size: int) -> bytes:
        is_in_head = at + size <= len(self._head)
        found = self._head[at : at + size] if is_in_head else os.pread(self._descriptor, size, at)
        if len(found) < size:
            raise CodecError(f"the file ends at byte {self._file_bytes}, but should have at least {at + size} bytes")
        return found

    def _meta(self, slot: int, at: int) -> _Meta:
        page = self._read(at, META_BYTES)
        if PAGE_HEADER.unpack_from(page) != (slot, 0, META, 0, 0):
            raise CodecError(f"page {slot} is not a meta page")
        found = read_meta_page(page)
        if (found.magic, found.version, found.address) != (MAGIC, DATA_VERSION, 0):
            raise CodecError(f"meta page {slot} has a wrong magic number, version or address")
        free, main, last_page = found.free, found.main, found.last_page
        page_bytes = free.pad
        if page_bytes not in PAGE_SIZES:
            raise CodecError(f"meta page {slot} names pages of {page_bytes} bytes")
        if free.flags != _FREE_FLAGS or main.flags or main.pad:
            raise CodecError(f"meta page {slot} has the flags {free.flags:#x} and {main.flags:#x}")
        if last_page < 1 or (last_page + 1) * page_bytes > found.map_bytes:
            raise CodecError(f"meta page {slot} names {last_page + 1} pages in a map of {found.map_bytes} bytes")
        return _Meta(slot, page_bytes, free, main, last_page, found.transaction_id)

    def _check_root(self, meta: _Meta, tree: Tree, name: str) -> None:
        if tree.root == NO_PAGE:
            if tree[2:7] != (0, 0, 0, 0, 0):
                raise CodecError(f"the {name} in meta page {meta.slot} has no pages, but {tree.entries} rows")
            return
        page = self._tree_page(meta, tree, name)
        if tree.depth > 1:
            if tree.branch_pages < tree.depth - 1 or tree.entries < tree.leaf_pages:
                raise CodecError(f"the {name} in meta page {meta.slot} contradicts itself")
            return
        nodes = self._nodes(page)
        big = [node for node in nodes if node.flags & BIG_VALUE]
        overflow_pages = sum(self._overflow_pages(meta, page, node) for node in big)
        if tree[3:7] != (0, 1, overflow_pages, len(nodes)):
            raise CodecError(
                f"the {name} in meta page {meta.slot} has {len(nodes)} rows, but should have {tree.entries}"
            )

    def _overflow_pages(self, meta: _Meta, page: bytes, node: LeafNode) -> int:
        """Count the pages of a large value. If LMDB shortened a row of the free list before its commit, the row keeps all its pages."""
        number = value_page(page, node)
        self._overflow(meta, number, 0)
        low, high = PAGE_HEADER.unpack(self._read(number * self._page_bytes, PAGE_HEADER.size))[3:]
        pages: int = low | high << 16
        if pages < value_pages(node.size, self._page_bytes):
            raise CodecError(f"a value of {node.size} bytes has {pages} pages")
        return pages

    def _check_free_list(self, meta: _Meta) -> None:
        """Check the free list: its last row must be of this transaction, and the counts of pages must add up.

        Every transaction except the first one frees pages and records them under its own number, as the last row of the list.
        Every page of the file belongs to one tree or is on the list.
        """
        tree = meta.free
        is_short = tree.leaf_pages <= _FREE_LEAVES_MAX
        free_pages = 0
        last = b""
        if tree.root != NO_PAGE:
            for page in self._leaves(meta, tree, only_last=not is_short):
                for node in self._nodes(page):
                    last = node.key
                    free_pages += self._free_in(meta, page, node)
        if last and last != meta.transaction_id.to_bytes(8, sys.byteorder):
            raise CodecError(f"the free list in meta page {meta.slot} is not that of transaction {meta.transaction_id}")
        if not is_short:
            return
        trees = [meta.free, meta.main]
        if meta.main.root != NO_PAGE:
            trees += [read_tree(packed) for packed in self._named(meta).values()]
        used = META_PAGES + sum(tree.pages for tree in trees)
        if used + free_pages != meta.last_page + 1:
            raise CodecError(
                f"meta page {meta.slot} names {meta.last_page + 1} pages, but {used} are in use and {free_pages} free"
            )

    def _free_in(self, meta: _Meta, page: bytes, node: LeafNode) -> int:
        """Return the number of pages in a row of the free list. The row holds a count and the page numbers."""
        if len(node.key) != 8 or node.size % 8:
            raise CodecError(f"the free list in meta page {meta.slot} has an impossible row")
        packed = page[node.value_at : node.value_at + 8]
        if node.flags & BIG_VALUE:
            packed = self._overflow(meta, value_page(page, node), 8)
        count = int.from_bytes(packed, sys.byteorder)
        if count >= node.size // 8:
            raise CodecError(f"the free list in meta page {meta.slot} has a row of {node.size} bytes for {count} pages")
        return count

    def _leaves(self, meta: _Meta, tree: Tree, *, only_last: bool) -> Iterator[bytes]:
        """Yield the leaf pages of a tree in order."""
        page = self._tree_page(meta, tree, "free list")
        if tree.depth == 1:
            yield page
            return
        places = node_places(page)
        for at in places[-1:] if only_last else places:
            child = tree._replace(root=child_page(page, at), depth=tree.depth - 1)
            yield from self._leaves(meta, child, only_last=only_last)

    def _nodes(self, page: bytes) -> list[LeafNode]:
        """Decode the rows of a leaf page."""
        number = PAGE_HEADER.unpack_from(page)[0]
        nodes = self._decoded.get(number)
        if nodes is None:
            try:
                nodes = self._decoded[number] = [leaf_node(page, at) for at in node_places(page)]
            except struct.error as error:
                raise CodecError(f"page {number} is damaged: {error}") from error
        return nodes

    def _tree_page(self, meta: _Meta, tree: Tree, name: str) -> bytes:
        """Return the page at the root of a tree, after checking its own number and its kind."""
        if not 2 <= tree.root <= meta.last_page or not 1 <= tree.depth <= DEPTH_MAX:
            raise CodecError(f"the {name} in meta page {meta.slot} is at page {tree.root} of {meta.last_page + 1}")
        page = self._read(tree.root * self._page_bytes, self._page_bytes)
        number, _, flags, lower, upper = PAGE_HEADER.unpack_from(page)
        kind = LEAF if tree.depth == 1 else BRANCH
        if (number, flags) != (tree.root, kind) or not PAGE_HEADER.size < lower <= upper <= self._page_bytes:
            raise CodecError(
                f"the {name} in meta page {meta.slot} is at page {tree.root}, which is another kind of page"
            )
        return page

    # ------------------------------------------------------------------------------------------------------ rows

    def _rows(self, meta: _Meta, database: bytes) -> Rows:
        """Return every row of a named database of one page, or no rows if there is no such database."""
        if meta.main.root == NO_PAGE:
            return {}
        packed = self._named(meta).get(database)
        if packed is None:
            return {}
        tree = read_tree(packed)
        if tree.root == NO_PAGE:
            return {}
        if tree.depth != 1:
            raise CodecError(f"database {database!r} has more than one page")
        return self._leaf(meta, tree, 0)

    def _named(self, meta: _Meta) -> Rows:
        """Return the packed trees of the named databases."""
        if meta.main.depth != 1:
            raise CodecError(f"meta page {meta.slot} points to more databases than fit on one page")
        named = self._leaf(meta, meta.main, SUB_TREE)
        if any(len(packed) != TREE.size for packed in named.values()):
            raise CodecError(f"meta page {meta.slot} points to rows that are not databases")
        return named

    def _leaf(self, meta: _Meta, tree: Tree, flags_wanted: int) -> Rows:
        page = self._tree_page(meta, tree, "database")
        rows: dict[bytes, bytes] = {}
        for node in self._nodes(page):
            if node.flags & BIG_VALUE:
                rows[node.key] = self._overflow(meta, value_page(page, node), node.size)
            elif node.flags & SUB_TREE == flags_wanted:
                rows[node.key] = page[node.value_at : node.value_at + node.size]
        return rows

    def _overflow(self, meta: _Meta, number: int, size: int) -> bytes:
        if not 2 <= number <= meta.last_page or size > self._file_bytes:
            raise CodecError(f"a value of {size} bytes at page {number} of {meta.last_page + 1}")
        value = self._read(number * self._page_bytes, PAGE_HEADER.size + size)
        # an overflow page has its number of pages in place of lower and upper
        if PAGE_HEADER.unpack_from(value)[:3] != (number, 0, OVERFLOW):
            raise CodecError(f"page {number} is not the beginning of a value")
        return value[PAGE_HEADER.size :]
