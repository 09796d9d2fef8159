"""File operations that are durable when they return. A rename is durable only after its directory was synced."""

from __future__ import annotations

import os
from pathlib import Path


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    """Rename `source`, which must be synced, to `target`. After a crash the name shows the old or the new file, complete."""
    source.replace(target)
    sync_directory(target.parent)
    if source.parent != target.parent:
        sync_directory(source.parent)
