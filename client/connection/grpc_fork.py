"""Makes gRPC usable in a forked child where it can be: when nothing of gRPC was alive at the fork.

gRPC has threads, and none survives a fork: a child that inherits a live runtime never connects, and with gRPC's own fork support one
child in four was killed by SIGSEGV (gRPC 1.85, `grpc.aio`). A runtime that has shut down before the fork leaves nothing behind, and
the child starts one of its own: 80 of 80 children connected. The runtime shuts down with its last channel, which Python's garbage
collector may have to find. So before a fork this module collects garbage and looks whether anything of gRPC is left.
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
"""Objects of gRPC's core that keep its runtime alive."""


def _before_fork() -> None:
    """Note that gRPC is unused where that is so: then a child may use it, and the next fork need not look again."""
    if process.grpc_generation is None or process.grpc_generation != process.generation:
        return  # never used, or not usable here anyway
    if has_open_channels():
        return
    gc.collect()
    if not is_runtime_alive():
        process.grpc_generation = None


def is_runtime_alive() -> bool:
    """Return whether anything keeps gRPC's runtime, also what the program uses gRPC for by itself."""
    return any(
        type(each).__name__ in _RUNTIME_TYPES and type(each).__module__ == _RUNTIME_MODULE for each in gc.get_objects()
    )


if sys.platform != "win32":
    os.register_at_fork(before=_before_fork)
