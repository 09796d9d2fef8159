"""Links in the kernel: a network name space for each broker, one bridge between them, and a static neighbour table in each.

To cut a direction, the source's neighbour table gets a hardware address for the target that no interface has: frames are sent and reach no
broker, as on a dead link. This needs no packet filter (many kernels lack them) and does not affect the other direction. The kernel removes
the name spaces after their last process. The only interface in the host's name space serves the clients and is removed with its peer.

Source: ip-neighbour(8), tc-tbf(8), network_namespaces(7).
"""

from __future__ import annotations

import itertools
import os

from tests.chaos.leash import Leash
from tests.chaos.links import CLIENTS, Place
from tests.chaos.tools import ToolError, run_tool

NOBODY = "02:00:00:00:ff:ff"
SLOW_KILOBITS = 400
"""50 kB/s: enough for heartbeats, not for the load of clients."""
SUBNETS = 256
_numbers = itertools.count()


class Namespaces:
    """`Links` between brokers in network name spaces. Needs root."""

    first_port = 0

    def __init__(self, brokers: int) -> None:
        self._leashes: dict[int, Leash] = {}
        self._switch: Leash | None = None
        self._cut: set[tuple[int, int]] = set()
        self._slow: set[int] = set()
        try:
            self._build(brokers)
        except BaseException:
            self.close()
            raise

    def _build(self, brokers: int) -> None:
        self._switch = Leash(("unshare", "--net"))
        self._leashes = {broker_id: Leash(("unshare", "--net")) for broker_id in range(1, brokers + 1)}
        self._in(self._switch, "link add name switch type bridge", "link set switch up")
        self._interface = f"ch{os.getpid()}n{next(_numbers)}"  # 15 characters at most
        subnet = self._free_subnet()
        self._address = {broker_id: f"198.18.{subnet}.{broker_id or 254}" for broker_id in range(brokers + 1)}
        self._hardware = {broker_id: f"02:00:00:00:{subnet:02x}:{broker_id:02x}" for broker_id in range(brokers + 1)}
        for broker_id in self._address:
            self._plug_in(broker_id)
        for source, target in itertools.permutations(self._address, 2):
            self._point(source, target, self._hardware[target])

    def _plug_in(self, broker_id: int) -> None:
        owner = self._leashes[broker_id].pid if broker_id != CLIENTS else os.getpid()
        name = self._name(broker_id)
        assert self._switch is not None
        self._in(
            self._switch,
            f"link add port{broker_id} type veth peer name {name} address {self._hardware[broker_id]} netns {owner}",
            f"link set port{broker_id} master switch",
            f"link set port{broker_id} up",
        )
        self._ip(
            broker_id,
            f"address add {self._address[broker_id]}/24 dev {name}",
            f"link set {name} up",
            *(["link set lo up"] if broker_id != CLIENTS else []),
        )

    def _free_subnet(self) -> int:
        """Return a subnet of 198.18.0.0/15, the range for network tests (RFC 2544), that no interface here has."""
        taken = run_tool(["ip", "-4", "address"])
        for attempt in range(SUBNETS):
            subnet = (os.getpid() + attempt) % SUBNETS
            if f" 198.18.{subnet}." not in taken:
                return subnet
        raise ToolError("every test network is taken")

    def _name(self, broker_id: int) -> str:
        return "wire" if broker_id != CLIENTS else self._interface

    def _enter(self, leash: Leash) -> tuple[str, ...]:
        return ("nsenter", f"--net=/proc/{leash.pid}/ns/net")

    def _in(self, leash: Leash, *commands: str) -> None:
        run_tool([*self._enter(leash), "ip", "-batch", "-"], "\n".join(commands) + "\n")

    def _ip(self, broker_id: int, *commands: str) -> None:
        prefix = self._enter(self._leashes[broker_id]) if broker_id != CLIENTS else ()
        run_tool([*prefix, "ip", "-batch", "-"], "\n".join(commands) + "\n")

    def _point(self, source: int, target: int, hardware: str) -> None:
        self._ip(
            source,
            f"neighbour replace {self._address[target]} lladdr {hardware} dev {self._name(source)} nud permanent",
        )

    def address(self, broker_id: int) -> str:
        """Return the broker's host address."""
        return self._address[broker_id]

    def net_of(self, broker_id: int) -> str:
        """Return the file that represents the broker's name space."""
        return f"/proc/{self._leashes[broker_id].pid if broker_id != CLIENTS else 'self'}/ns/net"

    def place(self, broker_id: int) -> Place:
        return Place(
            bind_host=self._address[broker_id],
            seen_host=self._address[broker_id],
            enter=self._enter(self._leashes[broker_id]),
            arguments=("--set", "allow_insecure_remote=true"),
        )

    def cut(self, source: int, target: int) -> None:
        self._point(source, target, NOBODY)
        self._cut.add((source, target))

    def restore(self, source: int, target: int) -> None:
        self._point(source, target, self._hardware[target])
        self._cut.discard((source, target))

    def slow(self, broker_id: int) -> None:
        self._traffic_control(
            broker_id, "replace", "tbf", "rate", f"{SLOW_KILOBITS}kbit", "burst", "8kb", "latency", "400ms"
        )
        self._slow.add(broker_id)

    def hurry(self, broker_id: int) -> None:
        if broker_id in self._slow:
            self._traffic_control(broker_id, "delete")
            self._slow.discard(broker_id)

    def _traffic_control(self, broker_id: int, action: str, *discipline: str) -> None:
        device = ("dev", self._name(broker_id), "root")
        run_tool([*self._enter(self._leashes[broker_id]), "tc", "qdisc", action, *device, *discipline])

    def heal(self) -> None:
        for source, target in sorted(self._cut):
            self.restore(source, target)
        for broker_id in sorted(self._slow):
            self.hurry(broker_id)

    def close(self) -> None:
        for leash in self._leashes.values():
            leash.close()
        if self._switch is not None:
            self._switch.close()
