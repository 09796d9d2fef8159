"""Faults of a process's resource limits: few descriptors, little memory. The broker must serve anyway or end with a clear error."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.chaos.condition import is_ready, wait_until
from tests.chaos.fault import START_SECONDS, FaultError, Target, fault, last_lines, served_or_ended

FEW_DESCRIPTORS = (600, 1024)
IDLE_CONNECTIONS = 1200
"""Connections to each port of a broker (clients, peers, HTTP): more than its limit of open files."""
TOO_FEW_DESCRIPTORS = (48, 200)
TOO_LITTLE_MEMORY_BYTES = (1 << 30, 3 << 30)
CONNECT_SECONDS = 2.0


@contextmanager
def _limited(target: Target, victim: int, **limits: int) -> Iterator[None]:
    """Start the broker under the limits, and restart it without them at the end."""
    cluster = target.cluster
    cluster.kill(victim)
    cluster.limit(victim, limits)
    try:
        cluster.restart(victim, wait=False)
        yield
    finally:
        cluster.limit(victim, {})
        cluster.restart(victim, wait=False)


def _starved(target: Target, victim: int, limit: str, value: int) -> Iterator[str]:
    """Start a broker under a limit that is too low. It must serve or end with a message that names the limit, without a traceback."""
    cluster = target.cluster
    logged = len(cluster.logs(victim))
    with _limited(target, victim, **{limit: value}):
        is_serving = served_or_ended(target, victim, f"under {limit}={value}")
        said = cluster.logs(victim)[logged:]
        if "Traceback" in said:
            raise FaultError(f"broker {victim} has a traceback for {limit}:\n{said[-2000:]}")
        if not is_serving and limit not in said:
            raise FaultError(f"broker {victim} ended under {limit} and does not say why:\n{said[-2000:]}")
        yield f"{victim} has {limit}={value}, and {'serves' if is_serving else 'says so'}"


@fault("limits", (0.0, 0.5))
def too_few_descriptors(target: Target) -> Iterator[str]:
    yield from _starved(target, target.any_broker(), "RLIMIT_NOFILE", target.chance.randint(*TOO_FEW_DESCRIPTORS))


@fault("limits", (0.0, 0.5))
def too_little_memory(target: Target) -> Iterator[str]:
    yield from _starved(target, target.any_broker(), "RLIMIT_AS", target.chance.randint(*TOO_LITTLE_MEMORY_BYTES))


@fault("limits", (1.0, 4.0))
def idle_connections(target: Target) -> Iterator[str]:
    """Open more idle connections than the broker has descriptors: clients that connect and send nothing must not end a broker."""
    victim, count = target.any_broker(), target.chance.randint(*FEW_DESCRIPTORS)
    cluster = target.cluster
    with _limited(target, victim, RLIMIT_NOFILE=count), ExitStack() as connections:
        if not wait_until(lambda: is_ready(cluster, victim), START_SECONDS, target.stop):
            raise FaultError(f"broker {victim} is not ready {START_SECONDS:.0f} s after its start with {count} files")
        made = sum(_connect(connections, address) for address in cluster.addresses_of(victim))
        yield f"{victim} may open {count} files, and has {made} idle connections"
        if not cluster.is_running(victim):
            raise FaultError(
                f"{made} idle connections ended broker {victim}, which may open {count} files:\n{last_lines(target, victim)}"
            )


def _connect(connections: ExitStack, address: str) -> int:
    """Open connections until one is refused, at most `IDLE_CONNECTIONS`. Return how many were opened."""
    host, _, port = address.rpartition(":")
    for made in range(IDLE_CONNECTIONS):
        try:
            connection = socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS)
        except OSError:
            return made
        connections.enter_context(connection)
    return IDLE_CONNECTIONS
