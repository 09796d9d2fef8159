"""The simulated network: machines, links with delays and cuts, and ordered connections over them, as in TCP.

Bytes of a connection arrive in order or not at all, but connections overtake each other. A cut link holds the packets until it heals
or the sender gives up. A process that ends closes its connections. A machine that loses power sends nothing. This module must not
interpret the bytes.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import log as _log

from sim.cluster.world.host import Handle, Host
from sim.cluster.world.loop import VirtualLoop

UNACKED_SECONDS = 1.5
"""TCP gives up a connection when sent bytes are not acknowledged for this time (the product sets TCP_USER_TIMEOUT)."""


@dataclass(slots=True)
class Weather:
    """The current state of the network."""

    delay_min: float = 0.0005
    delay_mean: float = 0.001
    """Mean of the exponentially distributed delay in addition to `delay_min`."""
    slow_share: float = 0.0
    """Share of packets that take the time of a retransmission."""
    slow_seconds: float = 0.2
    reset_share: float = 0.0
    """Share of packets at which the connection breaks."""
    drop_share: float = 0.0
    """Share of frames that a node drops, as if its outbox were full."""


class Network:
    """All links. Machines are known by the names of their hosts."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, weather: Weather) -> None:
        self.loop = loop
        self.rng = rng
        self.weather = weather
        self.cuts: dict[tuple[str, str], None] = {}
        """Directed links on which nothing arrives."""
        self.clogs: dict[tuple[str, str], float] = {}
        """Directed links with an additional delay in seconds."""
        self.listeners: dict[str, Listener] = {}
        self.dark: dict[str, None] = {}
        """Machines without power. They do not even refuse connections."""
        self._pipes: dict[Pipe, None] = {}
        self.digest: Callable[[str, str, bytes], None] = lambda source, target, data: None
        """Called with all data that arrive."""
        self.resets = 0
        self.dropped = 0
        """Number of frames dropped by full outboxes."""
        self.held = 0
        """Number of packets held by a cut."""
        self.clogged = 0
        """Number of packets delayed by a clog."""
        self.lost_streams = 0
        """Number of connections that a sender gave up."""

    # ------------------------------------------------------------------------------------------------ faults

    def cut(self, source: str, target: str) -> None:
        """Cut a directed link."""
        self.cuts[source, target] = None

    def heal(self, source: str, target: str) -> None:
        """Restore a link, and deliver the packets that it held."""
        if self.cuts.pop((source, target), 0) is None:
            for pipe in list(self._pipes):
                pipe.pump(source, target)

    def heal_all(self) -> None:
        """Restore every link."""
        for source, target in list(self.cuts):
            self.heal(source, target)
        self.clogs.clear()

    def is_cut(self, source: str, target: str) -> bool:
        """Return whether the link is cut."""
        return (source, target) in self.cuts

    def delay(self, source: str, target: str) -> float:
        """Draw the delay of a packet that is sent now."""
        weather, chance = self.weather, self.rng
        if source == target:
            return 0.00005
        seconds = weather.delay_min - weather.delay_mean * _log(1.0 - chance.random())
        if weather.slow_share and chance.random() < weather.slow_share:
            seconds += weather.slow_seconds * chance.random()
        if self.clogs and (source, target) in self.clogs:
            self.clogged += 1
            seconds += self.clogs[source, target]
        return seconds

    def on_process_ended(self, host: Host, *, is_power_cut: bool) -> None:
        """Close the connections of an ended process, as its kernel does. After a power cut nobody closes them."""
        for address, listener in list(self.listeners.items()):
            if listener.host is host:
                del self.listeners[address]
        for pipe in list(self._pipes):
            side = pipe.side_of(host)
            if side is not None:
                if is_power_cut:
                    pipe.orphan(side)
                else:
                    pipe.close(side)

    # ------------------------------------------------------------------------------------------------ connecting

    def connect(
        self, host: Host, address: str, on_open: Callable[[Pipe], None], on_refused: Callable[[], None]
    ) -> None:
        """Try to connect once. Neither callback is called if the link is cut or the machine is without power."""
        target = address.rpartition(":")[0]
        self.loop.after(self.delay(host.name, target), None, self._syn, host, address, on_open, on_refused)

    def _syn(self, host: Host, address: str, on_open: Callable[[Pipe], None], on_refused: Callable[[], None]) -> None:
        target = address.rpartition(":")[0]
        if host.is_dead or self.is_cut(host.name, target) or self.is_cut(target, host.name) or target in self.dark:
            return
        listener = self.listeners.get(address)
        delay = self.delay(target, host.name)
        if listener is None or listener.host.is_dead:
            self.loop.after(delay, host, on_refused)
            return
        pipe = Pipe(self, host, listener.host)
        self._pipes[pipe] = None
        # the kernel also accepts for a frozen process, which sees the connection when it is resumed
        self.loop.soon(listener.host, listener.accept, pipe)
        self.loop.after(delay, host, _opened, pipe, on_open)

    def forget(self, pipe: Pipe) -> None:
        """Remove a connection that is closed at both ends."""
        self._pipes.pop(pipe, None)


def _opened(pipe: Pipe, on_open: Callable[[Pipe], None]) -> None:
    if not pipe.ends[0].is_closed:
        on_open(pipe)
    else:
        pipe.close(0)


@dataclass(slots=True)
class Listener:
    """The host that accepts connections at an address."""

    host: Host
    accept: Callable[[Pipe], None]


_Packet = tuple[bytes, Callable[..., None], tuple[object, ...], bool]
"""The bytes, the function that receives them with its arguments, and whether this is the sender's last packet."""


class _End:
    """One side of a connection, and the packets under way to the other side."""

    __slots__ = ("arrival", "arrives_at", "bytes_under_way", "host", "is_closed", "is_held", "on_lost", "packets")

    def __init__(self, host: Host) -> None:
        self.host = host
        self.packets: deque[_Packet] = deque()
        self.arrives_at = 0.0
        self.arrival: Handle
        """Scheduled once for each packet."""
        self.bytes_under_way = 0
        self.is_held = False
        self.is_closed = False
        """Whether this side sends and receives nothing any more."""
        self.on_lost: Callable[[], None] | None = None
        """Called in its host when the connection is lost."""


class Pipe:
    """A connection. End 0 opened it, and end 1 accepted it."""

    __slots__ = ("_is_local", "_network", "ends")

    def __init__(self, network: Network, opener: Host, accepter: Host) -> None:
        self._network = network
        self._is_local = opener.name == accepter.name
        self.ends = (_End(opener), _End(accepter))
        for side, end in enumerate(self.ends):
            end.arrival = network.loop.handle(self._arrive, side)

    def side_of(self, host: Host) -> int | None:
        """Return the number of a host's end, or None."""
        if self.ends[0].host is host:
            return 0
        return 1 if self.ends[1].host is host else None

    def send(self, side: int, data: bytes, deliver: Callable[..., None], *args: object) -> None:
        """Call `deliver(*args)` in the other end's host when `data` has arrived there."""
        if self.ends[side].is_closed:
            return
        network = self._network
        weather = network.weather
        if weather.reset_share and not self._is_local and network.rng.random() < weather.reset_share:
            network.resets += 1
            self.reset()
            return
        self._push(side, (data, deliver, args, False))

    def _push(self, side: int, packet: _Packet) -> None:
        ends, network = self.ends, self._network
        end, loop = ends[side], network.loop
        end.packets.append(packet)
        end.bytes_under_way += len(packet[0])
        arrives_at = loop.now + network.delay(end.host.name, ends[1 - side].host.name)
        if arrives_at < end.arrives_at:
            arrives_at = end.arrives_at
        end.arrives_at = arrives_at
        loop.push(arrives_at, end.arrival)

    def _arrive(self, side: int) -> None:
        ends, network = self.ends, self._network
        end, other = ends[side], ends[1 - side]
        if not end.packets:
            return
        source, target = end.host.name, other.host.name
        cuts = network.cuts
        if end.is_held or (cuts and (source, target) in cuts) or target in network.dark:
            if not end.is_held:
                end.is_held = True
                network.held += 1
                network.loop.after(UNACKED_SECONDS, None, self._give_up, side)
            return
        data, deliver, args, is_end = end.packets.popleft()
        end.bytes_under_way -= len(data)
        if other.is_closed or other.host.is_dead:
            # the process that is there now knows nothing about this connection
            if not is_end:
                self._lose(side)
            self._finish()
            return
        if is_end:
            self._lose(1 - side)
            self._finish()
            return
        if data:
            network.digest(source, target, data)
        if cuts and (target, source) in cuts:
            network.loop.after(UNACKED_SECONDS, None, self._miss_acknowledgement, side)
        host = other.host
        if host.is_frozen:
            network.loop.run_in(host, deliver, *args)
        else:
            host.context.run(deliver, *args)

    def _miss_acknowledgement(self, side: int) -> None:
        """Lose the connection at the sender, whose data arrived but were not acknowledged."""
        end, other = self.ends[side], self.ends[1 - side]
        if (other.host.name, end.host.name) in self._network.cuts and not end.is_closed:
            self._network.lost_streams += 1
            self._lose(side)

    def pump(self, source: str, target: str) -> None:
        """Deliver the packets that a restored link held."""
        for side in (0, 1):
            end = self.ends[side]
            if end.is_held and end.host.name == source and self.ends[1 - side].host.name == target:
                self.release(side)

    def release(self, side: int) -> None:
        """Deliver the packets that one side held."""
        end, network = self.ends[side], self._network
        end.is_held = False
        end.arrives_at = network.loop.now
        for _ in range(len(end.packets)):
            end.arrives_at += network.delay(end.host.name, self.ends[1 - side].host.name) * 0.1
            network.loop.push(end.arrives_at, end.arrival)

    def _give_up(self, side: int) -> None:
        end = self.ends[side]
        if end.is_held and end.packets:
            self._network.lost_streams += 1
            end.packets.clear()
            end.bytes_under_way = 0
            end.is_held = False
            self._lose(side)
            self._finish()

    def close(self, side: int) -> None:
        """Close one side after the data sent. The other side is closed when they have arrived."""
        end = self.ends[side]
        if end.is_closed:
            return
        end.is_closed = True
        self._push(side, (b"", _nothing, (), True))

    def reset(self) -> None:
        """Break the connection immediately at both ends. Packets under way are lost."""
        for side in (0, 1):
            self.ends[side].packets.clear()
            self.ends[side].bytes_under_way = 0
            self._lose(side)
        self._finish()

    def orphan(self, side: int) -> None:
        """Silence one side after a power cut. The packets under way from it are still delivered."""
        self.ends[side].is_closed = True

    def _lose(self, side: int) -> None:
        end = self.ends[side]
        if end.is_closed and end.on_lost is None:
            return
        end.is_closed = True
        if end.on_lost is not None:
            self._network.loop.soon(end.host, end.on_lost)
            end.on_lost = None

    def _finish(self) -> None:
        if all(end.is_closed and not end.packets for end in self.ends):
            self._network.forget(self)


def _nothing() -> None: ...
