"""Base of the disk and clock shims: a library between Python and the C library (LD_PRELOAD), and the page that controls it."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import ClassVar

from tests.chaos.tools import run_tool

PAGE_BYTES = 4096


class ShimOrders:
    """The page that controls one broker's shim. It outlives the broker's process, and a page of zeros changes nothing.

    Args:
        directory: Directory of the page's file.
        library: Library that `build` compiled.
        name: Name of the page's file.
    """

    SOURCE: ClassVar[Path]
    """The shim in C."""
    VARIABLE: ClassVar[str]
    """The environment variable with the path of the page."""

    @classmethod
    def build(cls, directory: Path) -> Path:
        """Compile the shim into a directory."""
        library = directory / f"{cls.SOURCE.stem}.so"
        run_tool(["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(library), str(cls.SOURCE), "-ldl"])
        return library

    def __init__(self, directory: Path, library: Path, name: str) -> None:
        self._path = directory / f"{name}.orders"
        self._path.write_bytes(bytes(PAGE_BYTES))
        with self._path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), PAGE_BYTES)
        self.environment = {"LD_PRELOAD": str(library), self.VARIABLE: str(self._path)}

    def close(self) -> None:
        """Unmap and remove the page. A running broker keeps its own mapping."""
        self._page.close()
        self._path.unlink(missing_ok=True)
