"""File operations that are durable when they return. A rename is durable only after its directory was synced."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    with _opened(path) as descriptor:
        os.fsync(descriptor)


def sync_file(path: Path) -> None:
    """Make a file's content and size durable."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Create a directory and its parents, durable on return. The directory may exist already."""
    if path.is_dir():
        return
    if not path.parent.is_dir():
        make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def replace_file(source: Path, target: Path) -> None:
    """Rename `source`, which must be synced, to `target`. After a crash the name shows the old or the new file, complete.

    The directories are opened before the rename, so a lack of descriptors leaves both names as they were.
    """
    with _opened(target.parent) as into, _opened(source.parent) as out_of:
        source.replace(target)
        os.fsync(into)
        if source.parent != target.parent:
            os.fsync(out_of)


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    """Yield a descriptor of a directory."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
