"""Run one broker process: limits of the operating system, event loop, signals, exit code."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib.metadata
import json
import os
import resource
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

import structlog
import uvloop
from raftmq.broker.base.addresses import split_address
from raftmq.broker.base.config import BrokerConfig, LoadedConfig
from raftmq.broker.base.limits import why_process_is_too_small
from raftmq.broker.base.logs import configure_logs
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.environment import NodeEnvironment, end_process
from raftmq.broker.node import Node
from raftmq.broker.service_manager import ServiceManager
from raftmq.extras import MissingExtraError, require
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.directory_lock import DirectoryLock
from raftmq.storage.disk_space import VolumeFullError
from raftmq.storage.durable_files import make_directory
from raftmq.storage.errors import (
    DirectoryInUseError,
    RegistryError,
    RegistryUnavailableError,
    ReplicaStorageError,
    StorageFullError,
    StorageUnavailableError,
)
from raftmq.storage.lmdb_log_store import replica_file_count

if TYPE_CHECKING:
    from raftmq.broker.base.tracing import Tracing

log = structlog.get_logger(__name__)

SWITCH_INTERVAL_SECONDS = 0.0005
"""A writer thread takes the GIL again at each LMDB call and waits up to this long for it (measured: 96 commits/s on a busy
loop with Python's default of 5 ms, 1,533/s with 0.5 ms)."""
_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD_BYTES = 1536 * 1024
"""LMDB allocates lists of 1 and 2 MiB per open file and touches almost none of them. From the heap, glibc would write zeros into the list
of 2 MiB. Blocks above this threshold are mapped lazily, but only if the heap has no room for them, and the threshold is fixed, or else
glibc would raise it at the first one that is freed (measured: 2 MiB a file). It is above the largest usual batches, so that those stay on
the heap (measured with 1 MiB: records of 1,200 KiB went from 144 to 83 MB/s). The price: the freed lists of 1 MiB leave room for one of
2 MiB (measured: up to 665 KiB for each file that is opened after others were closed)."""
_M_TRIM_THRESHOLD = -1
_TRIM_THRESHOLD_BYTES = 256 * 1024 * 1024
"""Freed memory is kept for the next batch. By default glibc returns the top of the heap at 128 KiB, and each batch takes it again,
page fault by page fault (measured on a virtual machine: 4 us a page, 400 faults a megabyte; without them 1 KiB produce went from
84-109 to 123-149 MB/s). The kept memory is bounded by the budgets' largest simultaneous use."""
_M_TOP_PAD = -2
_TOP_PAD_BYTES = 1024 * 1024
"""The heap grows by so much more than was asked for: by less than LMDB's list of 2 MiB, which must find no room in it (measured:
21 KiB a file, and with 16 MiB 277 KiB, more than half of the memory of a broker with 1,000 partitions)."""
_START_GC_THRESHOLD = 50_000
"""Most objects of a start live as long as the process, so that the garbage collector searches them in vain. With Python's default
of 700 it took 0.9 s of the start of a broker with 1,000 partitions."""
EXIT_OK = 0  # these are codes of raftmq.cli.exit_codes, a package above this one
EXIT_MACHINE = 1
EXIT_USAGE = 2
EXIT_REFUSED = 4
EXIT_BAD_DATA = 6
_EXIT_SECONDS = 2.0
"""Time for the interpreter to end after the broker has ended."""


def run_broker(loaded: LoadedConfig) -> int:
    """Run until SIGTERM or SIGINT. Return the exit code. Prints one JSON line on stdout when ready."""
    config = loaded.config
    try:
        tracing = _start_tracing(config)
    except MissingExtraError as error:
        return _print_error(str(error), EXIT_MACHINE)
    except ValueError as error:
        return _print_error(str(error), EXIT_USAGE)
    try:
        return _run(loaded, tracing)
    finally:
        if tracing is not None:
            tracing.close()


def _start_tracing(config: BrokerConfig) -> Tracing | None:
    """Configure logs, and return the tracing if there is any. Raises `MissingExtraError`, or `ValueError` as `start_tracing` does."""
    if config.tracing_endpoint is None:
        configure_logs(config.log_level)
        return None
    require("otel", "tracing_endpoint")
    from raftmq.broker.base.tracing import add_trace_ids, start_tracing

    configure_logs(config.log_level, also=(add_trace_ids,))
    return start_tracing(config)


def _run(loaded: LoadedConfig, tracing: Tracing | None) -> int:
    config = loaded.config
    try:
        make_directory(config.data_dir)
        lock = DirectoryLock(config.data_dir)
    except DirectoryInUseError as error:
        return _print_error(str(error), EXIT_REFUSED)
    except OSError as error:
        return _print_error(f"cannot use data directory {config.data_dir}: {error.strerror}", EXIT_MACHINE)
    for key in ("listen", "peer_listen", "http_listen", "data_listen"):
        address = getattr(config, key)
        problem = _why_not(str(address)) if address is not None else None
        if problem is not None:
            option = f"--{key.replace('_', '-')}" if key != "data_listen" else "--set data_listen"
            return _print_error(f"cannot listen on {problem}; choose another with {option}", EXIT_MACHINE)
    _raise_file_limit()
    problem = why_process_is_too_small(config.map_bytes, replica_file_count(config.data_dir))
    if problem is not None:
        return _print_error(problem, EXIT_MACHINE)
    _tune_allocator()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    gc.freeze()  # the modules
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(loaded, NodeEnvironment(config, tracing, lock)))
    except (VolumeFullError, RegistryUnavailableError, StorageUnavailableError, StorageFullError) as error:
        # a service manager tries again, as after no other problem of a file
        return _print_error(str(error), EXIT_MACHINE)
    except (RegistryError, ReplicaStorageError) as error:
        return _print_error(f"{error}; raftmq doctor {config.data_dir} says more", EXIT_BAD_DATA)
    finally:
        lock.close()


async def _serve(loaded: LoadedConfig, parts: NodeEnvironment) -> int:
    node = Node(loaded.config, importlib.metadata.version("raftmq"), parts, loaded.sources)
    if node.store.board is not None:
        node.store.board.catch_faults()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(node.supervisor.on_loop_error)
    stopping: list[asyncio.Task[None]] = []
    manager = ServiceManager(os.environ, os.getpid())

    def stop() -> None:
        if not stopping:
            manager.stopping()
            _bound_end(node.timing.shutdown_seconds + _EXIT_SECONDS)
            starting.cancel()
            stopping.append(loop.create_task(node.stop()))

    async def start() -> None:
        thresholds = gc.get_threshold()
        gc.set_threshold(_START_GC_THRESHOLD)
        await node.start()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*thresholds)
        ready = {
            "event": "broker_ready",
            "broker_id": node.view.node_id,
            "client_address": node.addresses.client,
            "peer_address": node.addresses.peer,
            "http_address": node.addresses.http,
            "data_address": node.addresses.data,
            "cluster_id": node.view.cluster_id,
        }
        _print(json.dumps(ready), sys.stdout)
        manager.ready(f"broker {node.view.node_id} serves clients at {node.addresses.client}")

    starting = loop.create_task(start())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await starting
    except asyncio.CancelledError:
        pass
    except RequestError as error:
        code = _print_error(str(error), EXIT_USAGE if error.code == pb.NOT_FORMED else EXIT_REFUSED)
        await node.stop()
        return code
    except OSError as error:
        code = _print_error(str(error), EXIT_MACHINE)
        await node.stop()
        return code
    await node.wait_stopped()
    for stopped in stopping:
        await stopped  # an error of the orderly end is reported like one of the start
    manager.close()
    return EXIT_OK


def _bound_end(seconds: float) -> None:
    """End the process after `seconds`, even if the loop hangs, or a thread that the interpreter waits for."""

    def end() -> None:
        log.error("shutdown_overdue", phase="process", elapsed_seconds=seconds)
        end_process()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _print_error(sentence: str, exit_code: int) -> int:
    _print(f"raftmq: {' '.join(sentence.split())}", sys.stderr)
    return exit_code


def _print(line: str, file: TextIO) -> None:
    """Print a line, unless nobody reads it or its volume is full: a broker is of more use than its report."""
    with suppress(OSError):
        print(line, file=file, flush=True)


def _why_not(address: str) -> str | None:
    """Return why no server can listen there, or None if one can. gRPC would report it only in its own log, without a reason."""
    host, port = split_address(address)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
    except OSError as error:
        return f"{address}: {(error.strerror or str(error)).lower()}"
    except UnicodeError:  # a label of the name is empty or too long
        return f"{address}: {host} is no host name"
    return None


def _tune_allocator() -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's; other C libraries do not have this problem
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
        mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)


def _raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit, because replicas and connections need descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
