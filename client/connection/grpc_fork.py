"""Makes gRPC usable in a forked child where possible: when nothing of gRPC was alive at the fork.

gRPC has threads, and none survives a fork. A child that inherits a live runtime never connects, and with gRPC's own fork support one child
in four was killed by SIGSEGV (gRPC 1.85, `grpc.aio`). A runtime that has shut down before the fork leaves nothing behind, and the child
starts its own: 80 of 80 children connected. The runtime shuts down with its last channel, which Python's garbage collector may have to
find. So before a fork this module collects garbage and checks whether any part of gRPC is left.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

from raftmq.client.base.fork_guard import process
from raftmq.client.connection.shared_channel import has_open_channels

_RUNTIME_MODULE: Final = "grpc._cython.cygrpc"
_RUNTIME_TYPES: Final = frozenset(("AioChannel", "AioServer", "Channel", "Server"))
"""Types of gRPC's core whose objects keep its runtime alive."""


def _before_fork() -> None:
    """Record that gRPC is unused, if it is. Then a child may use it, and the next fork need not check again."""
    if process.grpc_generation is None or process.grpc_generation != process.generation:
        return  # never used, or not usable in this process anyway
    if has_open_channels():
        return
    gc.collect()
    if not is_runtime_alive():
        process.grpc_generation = None


def is_runtime_alive() -> bool:
    """Return whether any object keeps gRPC's runtime alive, including objects of the program itself."""
    return any(
        type(each).__name__ in _RUNTIME_TYPES and type(each).__module__ == _RUNTIME_MODULE for each in gc.get_objects()
    )


if sys.platform != "win32":
    os.register_at_fork(before=_before_fork)
