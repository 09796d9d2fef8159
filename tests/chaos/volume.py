"""A volume that can lose power: a file with an ext4 file system, mounted by a loop device.

`lose_power` stops the file system at once, without writing anything more, not even its journal: what was only in the page cache is gone, and
what a process writes from then on fails. The next `mount` finds what was on the device, and replays the journal, as a machine does when it
comes back. What the file system had handed to the device counts as kept, also when no flush followed: a device with a cache that loses that
is harsher than this.

Source: EXT4_IOC_SHUTDOWN in ext4's ioctl.c, which is how xfstests («godown -f») tests file systems for the same.
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
    """One volume; mounted when made. Needs root.

    Args:
        directory: Holds the image and the mount point, both named after `name`; they are removed at the end.
        name: Of both.
        size_bytes: What the volume can hold; the image is sparse.
    """

    def __init__(self, directory: Path, name: str, size_bytes: int) -> None:
        self.path = directory / name
        self.image = directory / f"{name}.image"
        self.path.mkdir()
        with self.image.open("wb") as file:
            file.truncate(size_bytes)
        run_tool(["mkfs.ext4", "-q", "-F", "-E", "nodiscard", str(self.image)])
        # It unmounts, and frees the loop device with it, also when we are killed.
        path, image = shlex.quote(str(self.path)), shlex.quote(str(self.image))
        release = f"while umount -l {path} 2>/dev/null; do :; done; rm -f {image}; rmdir {path} 2>/dev/null || :"
        self._leash = Leash(release=release)
        try:
            self.mount()
        except BaseException:
            self.close()
            raise

    def mount(self) -> None:
        """Mount it, replaying the journal."""
        run_tool(["mount", "-o", "loop,noatime", str(self.image), str(self.path)])

    def unmount(self) -> None:
        """Unmount it; no process may use it."""
        run_tool(["umount", str(self.path)])

    def lose_power(self) -> None:
        """Stop the file system; everything that was not written out is lost with the next `unmount`."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", GOING_DOWN_WITHOUT_FLUSHING_THE_LOG))
        finally:
            os.close(fd)

    def come_back(self) -> None:
        """Mount again what was on the device when it lost power."""
        self.unmount()
        self.mount()

    def close(self) -> None:
        """Unmount and remove everything. Safe to call again."""
        self._leash.close()
