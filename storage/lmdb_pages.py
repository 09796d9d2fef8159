"""The layout of LMDB's pages, as far as it is needed to read a file's bytes without mapping the file.

Source: LMDB 0.9, mdb.c (`MDB_page`, `MDB_meta`, `MDB_db`, `MDB_node`), on a 64-bit machine.
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Final, NamedTuple

PAGE_HEADER: Final = struct.Struct("=QHHHH")
"""number, pad, flags, lower, upper. In the first page of a large value the last two are its number of pages."""
_META_HEAD: Final = struct.Struct("=IIQQ")
"""magic, version, address of the map, size of the map."""
TREE: Final = struct.Struct("=IHHQQQQQ")
_META_END: Final = struct.Struct("=QQ")
"""last page, transaction id."""
NODE: Final = struct.Struct("=HHHH")
"""lower and upper half of the value's length (or of a child's page number), flags (or the top of that number), length of the key."""
META_BYTES: Final = PAGE_HEADER.size + _META_HEAD.size + 2 * TREE.size + _META_END.size

META_PAGES: Final = 2
MAGIC: Final = 0xBEEFC0DE
DATA_VERSION: Final = 1
NO_PAGE: Final = (1 << 64) - 1
"""Root of an empty tree."""
BRANCH, LEAF, OVERFLOW, META = 1, 2, 4, 8
"""Kinds of pages, in their flags."""
BIG_VALUE, SUB_TREE = 1, 2
"""Flags of a row: its value has pages of its own, or it is a named database."""
PAGE_SIZES: Final = tuple(1 << bits for bits in range(9, 17))
"""The possible sizes of a page in bytes."""
DEPTH_MAX: Final = 32
"""Maximum depth of a tree (`CURSOR_STACK`)."""


class LeafNode(NamedTuple):
    """A row on a leaf page."""

    key: bytes
    size: int
    """Length of the value. A large value is in pages of its own."""
    flags: int
    value_at: int


class Tree(NamedTuple):
    """The description of a B+tree in a meta page or in the row of a named database."""

    pad: int
    """The size of a page, in the free list of a meta page."""
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int

    @property
    def pages(self) -> int:
        """All pages of the tree."""
        return self.branch_pages + self.leaf_pages + self.overflow_pages


class MetaPage(NamedTuple):
    """One of the two meta pages, unchecked."""

    magic: int
    version: int
    address: int
    map_bytes: int
    free: Tree
    main: Tree
    last_page: int
    transaction_id: int


def open_for_looks(path: Path) -> int:
    """Open a file to read single pages of it, if possible without the system's read-ahead. Return the descriptor."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    return descriptor


def read_tree(data: bytes, at: int = 0) -> Tree:
    """Decode a tree."""
    return Tree._make(TREE.unpack_from(data, at))


def read_meta_page(page: bytes) -> MetaPage:
    """Decode a meta page of at least `META_BYTES`, unchecked."""
    free_at = PAGE_HEADER.size + _META_HEAD.size
    main_at = free_at + TREE.size
    magic, version, address, map_bytes = _META_HEAD.unpack_from(page, PAGE_HEADER.size)
    last_page, transaction_id = _META_END.unpack_from(page, main_at + TREE.size)
    free, main = read_tree(page, free_at), read_tree(page, main_at)
    return MetaPage(magic, version, address, map_bytes, free, main, last_page, transaction_id)


def node_places(page: bytes) -> tuple[int, ...]:
    """Return the positions at which a page's nodes begin, in the order of their keys. Raises `struct.error` for an impossible page."""
    lower = PAGE_HEADER.unpack_from(page)[3]
    return struct.unpack(f"={(lower - PAGE_HEADER.size) // 2}H", page[PAGE_HEADER.size : lower])


def leaf_node(page: bytes, at: int) -> LeafNode:
    """Decode the row at a position of a leaf page. Raises `struct.error` for an impossible position."""
    low, high, flags, key_bytes = NODE.unpack_from(page, at)
    value_at = at + NODE.size + key_bytes
    return LeafNode(page[at + NODE.size : value_at], low | high << 16, flags, value_at)


def node_key(page: bytes, at: int) -> bytes:
    """Return the key at a position of a page. A branch page's first node has none. Raises `struct.error` for an impossible position."""
    key_bytes = NODE.unpack_from(page, at)[3]
    return page[at + NODE.size : at + NODE.size + key_bytes]


def child_page(page: bytes, at: int) -> int:
    """Return the number of the page to which a branch page's node points. Raises `struct.error` for an impossible position."""
    low, high, top, _ = NODE.unpack_from(page, at)
    number: int = low | high << 16 | top << 32
    return number


def value_page(page: bytes, node: LeafNode) -> int:
    """Return the first page of a large value."""
    return int.from_bytes(page[node.value_at : node.value_at + 8], sys.byteorder)


def value_pages(size: int, page_bytes: int) -> int:
    """Return the minimum number of pages for a large value."""
    return (PAGE_HEADER.size + size - 1) // page_bytes + 1
