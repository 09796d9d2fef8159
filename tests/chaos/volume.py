"""Provide a volume that can lose power: a file with an ext4 file system, mounted through a loop device.

`lose_power` stops the file system immediately and without further writes, not even of its journal. Data in the page cache alone are lost,
and later writes of processes fail. The next `mount` reads the contents of the device and replays the journal, as a machine does after power
returns. Data that the file system had passed to the device are kept even without a flush: a device that loses its cache is harsher.

Source: EXT4_IOC_SHUTDOWN in ext4's ioctl.c. xfstests ("godown -f") tests file systems with it.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import struct
from pathlib import Path

from tests.chaos.leash import Leash
from tests.chaos.tools import run_tool

EXT4_IOC_SHUTDOWN = 0x8004587D
GOING_DOWN_WITHOUT_FLUSHING_THE_LOG = 2


class Volume:
    """A volume that is mounted on creation. Needs root.

    Args:
        directory: Directory of the image and the mount point. `close` removes both.
        name: Name of image and mount point.
        size_bytes: Capacity. The image is sparse.
    """

    def __init__(self, directory: Path, name: str, size_bytes: int) -> None:
        self.path = directory / name
        self.image = directory / f"{name}.image"
        self.path.mkdir()
        with self.image.open("wb") as file:
            file.truncate(size_bytes)
        run_tool(["mkfs.ext4", "-q", "-F", "-E", "nodiscard", str(self.image)])
        # The leash unmounts, which frees the loop device, even if this process is killed.
        path, image = shlex.quote(str(self.path)), shlex.quote(str(self.image))
        release = f"while umount -l {path} 2>/dev/null; do :; done; rm -f {image}; rmdir {path} 2>/dev/null || :"
        self._leash = Leash(release=release)
        try:
            self.mount()
        except BaseException:
            self.close()
            raise

    def mount(self) -> None:
        """Mount the volume, which replays the journal."""
        run_tool(["mount", "-o", "loop,noatime", str(self.image), str(self.path)])

    def unmount(self) -> None:
        """Unmount the volume, which no process may use."""
        run_tool(["umount", str(self.path)])

    def lose_power(self) -> None:
        """Stop the file system: the next `unmount` loses all data that are not on the device."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", GOING_DOWN_WITHOUT_FLUSHING_THE_LOG))
        finally:
            os.close(fd)

    def come_back(self) -> None:
        """Mount the volume again, with the contents of the device at the loss of power."""
        self.unmount()
        self.mount()

    def close(self) -> None:
        """Unmount and remove everything. Safe to call again."""
        self._leash.close()
