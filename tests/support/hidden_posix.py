"""Hide the parts of Python that only POSIX systems have from this process, so that it looks like Windows to every module that is imported afterwards.

The standard library and the packages of others are imported before, because they choose their own parts by `sys.platform`. A program calls
`hide()` first.
"""

from __future__ import annotations

import asyncio
import importlib.abc
import importlib.machinery
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from types import ModuleType

MODULES = frozenset(
    {
        "crypt",
        "curses",
        "fcntl",
        "grp",
        "nis",
        "ossaudiodev",
        "posix",
        "pty",
        "pwd",
        "readline",
        "resource",
        "spwd",
        "syslog",
    }
    | {"termios", "tty", "uvloop"}
)
"""Modules that Windows does not have."""
ATTRIBUTES: dict[ModuleType, tuple[str, ...]] = {
    os: (
        *(
            "fork",
            "forkpty",
            "getuid",
            "geteuid",
            "getgid",
            "killpg",
            "setsid",
            "getpgid",
            "posix_fallocate",
            "statvfs",
            "pread",
        ),
        *(
            "register_at_fork",
            "sched_getaffinity",
            "wait4",
            "mkfifo",
            "fchmod",
            "uname",
            "sysconf",
            "O_NONBLOCK",
            "O_DIRECTORY",
        ),
    ),
    select: ("poll", "epoll", "POLLERR", "POLLHUP", "POLLIN"),
    signal: (
        "SIGKILL",
        "SIGHUP",
        "SIGSTOP",
        "SIGCONT",
        "SIGCHLD",
        "SIGUSR1",
        "SIGUSR2",
        "pthread_sigmask",
        "setitimer",
    ),
    socket: ("AF_UNIX", "TCP_USER_TIMEOUT", "SO_REUSEPORT", "socketpair_unix"),
}
"""Names that Windows does not have, by module."""


class _Refusal(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r} (hidden)", name=name)
        return None


def hide() -> None:
    """Hide the modules and names. Event loops watch no signals from then on."""
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Refusal())
    for module, names in ATTRIBUTES.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    sys.platform = "win32"

    def not_implemented(self: object, *arguments: object) -> None:
        raise NotImplementedError

    for loop in (asyncio.SelectorEventLoop, asyncio.BaseEventLoop):
        loop.add_signal_handler = not_implemented  # type: ignore[method-assign, assignment]
        loop.remove_signal_handler = not_implemented  # type: ignore[method-assign, assignment]
