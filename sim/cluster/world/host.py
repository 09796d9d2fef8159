"""A simulated process: what runs in it, how fast its clock goes, whether it is frozen or dead.

Everything that is scheduled belongs to the host in whose context it was scheduled. A dead host runs nothing any more, not
even a `finally`, as after SIGKILL; a frozen one runs it later, as after SIGSTOP. Must not know what a broker is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from math import inf, nextafter

HOST: ContextVar[Host | None] = ContextVar("simulated_host", default=None)


class Handle:
    """A callback that is scheduled: asyncio's handle and timer handle in one, and light."""

    __slots__ = ("_when", "args", "callback", "context", "host")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[object, ...],
        context: Context,
        host: Host | None,
        when: float,
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self.host = host
        self._when = when

    def cancel(self) -> None:
        """Do not run it."""
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        """Whether it will not run (or has run: nobody asks then)."""
        return self.callback is None

    def when(self) -> float:
        """The time it is due, on its host's clock."""
        return self._when


class Host:
    """One incarnation of a process. A restart is another one."""

    __slots__ = ("boot", "context", "is_dead", "is_frozen", "name", "offset", "parked", "rate")

    def __init__(self, name: str, boot: int, rate: float, offset: float) -> None:
        self.name = name
        self.boot = boot
        self.rate = rate
        """Seconds of its clock in one of the simulation."""
        self.offset = offset
        """What its clock said at the simulation's beginning."""
        self.is_dead = False
        self.is_frozen = False
        self.parked: list[Handle] = []
        """What became due while it was frozen."""
        context = copy_context()
        context.run(HOST.set, self)
        self.context: Context = context

    def local(self, now: float) -> float:
        """Its clock at a time of the simulation."""
        return self.offset + now * self.rate

    def to_global(self, local: float) -> float:
        """The first time at which its clock says so: a timer that fires early would be set again, for ever."""
        due = (local - self.offset) / self.rate
        while self.offset + due * self.rate < local:
            due = nextafter(due, inf)
        return due

    def __repr__(self) -> str:
        return f"{self.name}#{self.boot}"
