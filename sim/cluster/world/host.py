"""A simulated process: its context, the rate of its clock, and whether it is frozen or dead.

Every scheduled callback belongs to the host in whose context it was scheduled. A dead host runs nothing any more, not even a
`finally`, as after SIGKILL. A frozen host runs its callbacks later, as after SIGSTOP. The clock of a suspended one pauses, too, as that of a
machine does. This module must not know brokers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from math import inf, nextafter

HOST: ContextVar[Host | None] = ContextVar("simulated_host", default=None)


class Handle:
    """A scheduled callback: a lightweight replacement of asyncio's handle and timer handle."""

    __slots__ = ("_when", "args", "callback", "context", "host", "is_by_host_clock")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[object, ...],
        context: Context,
        host: Host | None,
        when: float,
        *,
        is_by_host_clock: bool = False,
    ) -> None:
        self.is_by_host_clock = is_by_host_clock
        """Whether `when` is a time of its host's clock, which pauses with the machine."""
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self.host = host
        self._when = when

    def cancel(self) -> None:
        """Prevent the callback from running."""
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        """Return whether it was cancelled. Nobody asks after it has run."""
        return self.callback is None

    def when(self) -> float:
        """Return the time at which it is due, on its host's clock."""
        return self._when


class Host:
    """One incarnation of a process. A restart creates another host."""

    __slots__ = (
        "boot", "context", "is_dead", "is_frozen", "is_next_version", "name", "offset", "parked", "rate", "suspended_at",
    )  # fmt: skip

    def __init__(self, name: str, boot: int, rate: float, offset: float) -> None:
        self.name = name
        self.boot = boot
        self.rate = rate
        """Seconds of its clock per second of the simulation."""
        self.offset = offset
        """The time of its clock at the beginning of the simulation, less its pauses."""
        self.is_dead = False
        self.is_frozen = False
        self.suspended_at: float | None = None
        """The time of the simulation at which its machine was suspended. None unless that is why it is frozen."""
        self.is_next_version = False
        """Whether the process runs the next version of the program (`sim/cluster/upgrades/`)."""
        self.parked: list[Handle] = []
        """Callbacks that became due while the host was frozen."""
        context = copy_context()
        context.run(HOST.set, self)
        self.context: Context = context

    def local(self, now: float) -> float:
        """Return the time of its clock at a time of the simulation."""
        return self.offset + now * self.rate

    def to_global(self, local: float) -> float:
        """Return the first time of the simulation at which its clock shows `local`. A timer that fired early would be set again endlessly."""
        due = (local - self.offset) / self.rate
        while self.offset + due * self.rate < local:
            due = nextafter(due, inf)
        return due

    def __repr__(self) -> str:
        return f"{self.name}#{self.boot}"
