"""Faults of what the operating system gives a process: few descriptors, little memory. Refused in words, or served with."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.chaos.condition import is_ready, wait_until
from tests.chaos.fault import START_SECONDS, FaultError, Target, fault, last_lines, served_or_ended

FEW_DESCRIPTORS = (600, 1024)
IDLE_CONNECTIONS = 1200
"""To each of a broker's ports, of clients, peers and HTTP: more than it may have files open."""
TOO_FEW_DESCRIPTORS = (48, 200)
TOO_LITTLE_MEMORY_BYTES = (1 << 30, 3 << 30)
CONNECT_SECONDS = 2.0


@contextmanager
def _limited(target: Target, victim: int, **limits: int) -> Iterator[None]:
    """The broker starts under the limits; afterwards it starts without them."""
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
    """Start under a limit that is too low. It serves, or it ends with words about the limit: by no signal, without a traceback."""
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
    """More than there are descriptors for: a client that connects and says nothing must not end a broker."""
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
    """As many as it takes, at most `IDLE_CONNECTIONS`; returns how many."""
    host, _, port = address.rpartition(":")
    for made in range(IDLE_CONNECTIONS):
        try:
            connection = socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS)
        except OSError:
            return made
        connections.enter_context(connection)
    return IDLE_CONNECTIONS
