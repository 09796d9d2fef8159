"""Provide `ChaosCluster`, a `LocalCluster` whose links, disks, clocks and volumes can be made to fail.

`launch.py` starts each broker in its place. Invariant: after the context has ended, in whatever way, no broker, name space, mount, loop
device or temporary file of the cluster is left.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from raftmq.broker_process import BrokerProcess
from raftmq.cluster_addresses import Addresses
from raftmq.methods import DESCRIBE_TOPIC
from raftmq.proto import queue_pb2
from raftmq.testing import LocalCluster

from tests.chaos.clock_shim import ClockOrders
from tests.chaos.damage import wipe
from tests.chaos.disk_shim import DiskOrders
from tests.chaos.leash import Leash
from tests.chaos.links import Links, NoLinks
from tests.chaos.machine import missing_for_namespaces
from tests.chaos.namespaces import Namespaces
from tests.chaos.proxies import Proxies
from tests.chaos.shim import ShimOrders
from tests.chaos.volume import Volume

Orders = TypeVar("Orders", bound=ShimOrders)

LAUNCHER = Path(__file__).with_name("launch.py")
PLACES = "places.json"
CLONE_PORTS = 5000
"""The distance between a broker's ports and those of its clone, upwards if such ports exist, otherwise downwards."""
PORTS = 1 << 16
VOLUME_BYTES = 1 << 30
START_SECONDS = 60.0
FAST = (
    "data_tick_seconds=0.2",
    "data_election_ticks=8",
    "metadata_tick_seconds=0.1",
    "controller_seconds=0.3",
    "stable_seconds=2",
)
"""Elections start after 1.6 to 3.2 s, so a short run sees several. Delays on a busy machine are still shorter."""
SPARE_BROKERS = 4
"""Number of brokers that may join in a run with an operator's orders. Ids are not given again, so each place is used once."""


def best_links(brokers: int) -> Links:
    """Create links of name spaces where they are permitted, otherwise of proxies."""
    return Proxies(brokers) if missing_for_namespaces() else Namespaces(brokers)


def _launcher(path: Path, places: Mapping[str, object]) -> list[str]:
    """Write the places into a file and return the command that starts `raftmq` through `launch.py`."""
    path.write_text(json.dumps(places))
    return [sys.executable, "-I", "-S", str(LAUNCHER), str(path), sys.executable, "-m", "raftmq"]


def _port_of_clone(port: int) -> int:
    return port + CLONE_PORTS if port + CLONE_PORTS < PORTS else port - CLONE_PORTS


class ChaosCluster(LocalCluster):
    """A `LocalCluster` with fault injection.

    Args:
        brokers: Number of brokers at the beginning.
        spare: Number of brokers that may join later.
        links: Creates the links: `best_links`, `Namespaces` or `Proxies`. None means plain loopback.
        has_disk_orders: Whether `disk` controls each broker's disk. Needs a compiler.
        has_clock_orders: Whether `clock` controls each broker's wall clock. Needs a compiler.
        has_volumes: Whether each broker has its data on its own `volume`. Needs root.
        settings: ``key=value`` settings for every broker.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        spare: int = 0,
        links: Callable[[int], Links] | None = None,
        has_disk_orders: bool = False,
        has_clock_orders: bool = False,
        has_volumes: bool = False,
        settings: Sequence[str] = FAST,
    ) -> None:
        self._stack = ExitStack()
        self.root = Path(tempfile.mkdtemp(prefix="raftmq-chaos-"))
        try:
            self._stack.callback(shutil.rmtree, self.root, ignore_errors=True)
            # Volumes in the directory have their own leashes: removal is retried while one is still mounted.
            release = f"for attempt in 1 2 3 4 5; do rm -rf {self.root} && break; sleep 0.5; done"
            self._stack.callback(Leash(release=release).close)
            self.links: Links = links(brokers + spare) if links else NoLinks()
            self._stack.callback(self.links.close)
            self._volumes: dict[int, Volume] = {}
            directory = self.root / "cluster"
            directory.mkdir()
            self._places_max = brokers + spare
            broker_ids = range(1, self._places_max + 1)
            self._disks = self._ordered(DiskOrders, broker_ids) if has_disk_orders else {}
            self._clocks = self._ordered(ClockOrders, broker_ids) if has_clock_orders else {}
            for n in broker_ids if has_volumes else ():
                self._volumes[n] = Volume(self.root, f"volume-{n}", VOLUME_BYTES)
                self._stack.callback(self._volumes[n].close)
                (directory / f"broker-{n}").symlink_to(self._volumes[n].path / "data")
            super().__init__(
                brokers,
                directory=directory,
                first_port=self.links.first_port,
                timeout_seconds=START_SECONDS,
                broker_arguments=[word for setting in settings for word in ("--set", setting)],
                command=self._command_through_launcher(broker_ids),
            )
        except BaseException:
            self._stack.close()
            raise

    def _ordered(self, kind: type[Orders], broker_ids: Sequence[int]) -> dict[int, Orders]:
        """Create a shim of one kind for each broker."""
        library = kind.build(self.root)
        made = {n: kind(self.root, library, f"{kind.SOURCE.stem}-{n}") for n in broker_ids}
        for orders in made.values():
            self._stack.callback(orders.close)
        return made

    def _command_through_launcher(self, broker_ids: Sequence[int]) -> list[str]:
        self._places = {str(broker_id): self._place(broker_id) for broker_id in broker_ids}
        return _launcher(self.root / PLACES, self._places)

    def _place(self, broker_id: int) -> dict[str, object]:
        """Return the place of a broker as `launch.py` reads it."""
        place = self.links.place(broker_id)
        shims = [orders[broker_id].environment for orders in (self._disks, self._clocks) if broker_id in orders]
        environment = {**place.environment}
        for shim in shims:
            environment |= shim
        if shims:
            environment["LD_PRELOAD"] = ":".join(shim["LD_PRELOAD"] for shim in shims)
        return {
            **asdict(replace(place, environment=environment)),
            "data_dir": str(self._volumes[broker_id].path / "data") if broker_id in self._volumes else "",
            "limits": {},
            "is_numbered": True,
            "program": "",
        }

    def _seen_address(self, broker_id: int, address: str) -> str:
        host, _, port = address.rpartition(":")
        return f"{self.links.place(broker_id).seen_host or host}:{port}"

    def close(self) -> None:
        """Kill every broker and release everything. `with` calls this. Safe to call again."""
        super().close()
        self._stack.close()

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)

    @property
    def can_add_broker(self) -> bool:
        """Return whether a place is left for another broker. Ids of removed brokers are not given again."""
        return max(self._last_id, *self.broker_ids) < self._places_max

    # ------------------------------------------------------------------------------------------------------- faults

    def disk(self, broker_id: int) -> DiskOrders:
        """Return the controls of the broker's disk."""
        return self._disks[broker_id]

    def volume(self, broker_id: int) -> Volume:
        """Return the volume with the broker's data."""
        return self._volumes[broker_id]

    def clock(self, broker_id: int) -> ClockOrders:
        """Return the controls of the broker's wall clock."""
        return self._clocks[broker_id]

    def limit(self, broker_id: int, limits: Mapping[str, int]) -> None:
        """Set the soft and hard resource limits (`RLIMIT_…`) that the broker has from its next start on, in place of earlier ones."""
        self._change_place(broker_id, limits=dict(limits))

    def number(self, broker_id: int, *, is_numbered: bool) -> None:
        """Give or deny this place its broker id. Without one the data directory decides which broker starts here."""
        self._change_place(broker_id, is_numbered=is_numbered)

    def run_program(self, broker_id: int, program: Path | None) -> None:
        """Start the broker with this Python program from its next start on. None: with `raftmq`."""
        self._change_place(broker_id, program=str(program or ""))

    def _change_place(self, broker_id: int, **changes: object) -> None:
        self._places[str(broker_id)] |= changes
        (self.root / PLACES).write_text(json.dumps(self._places))

    def addresses_of(self, broker_id: int) -> tuple[str, ...]:
        """Return the broker's addresses for clients, peers and HTTP."""
        return tuple(self._broker(broker_id).addresses)

    def exit_code(self, broker_id: int) -> int:
        """Return the exit code of a broker that does not run: the negative number of the signal if a signal ended it."""
        process = self._broker(broker_id).process
        assert process is not None
        code = process.poll()
        assert code is not None, "it runs"
        return code

    def replace_data(self, broker_id: int, copy: Path) -> None:
        """Replace the data of a broker that does not run with a copy."""
        data_dir = self.data_dir(broker_id).resolve()
        wipe(data_dir)
        shutil.copytree(copy, data_dir)

    def exchange_data(self, one: int, other: int) -> None:
        """Exchange the data of two brokers that do not run."""
        aside = self.root / "aside"
        try:
            shutil.copytree(self.data_dir(one).resolve(), aside)
            self.replace_data(one, self.data_dir(other).resolve())
            self.replace_data(other, aside)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def rejoin(self, broker_id: int, broker_at: int) -> None:
        """Start a broker that does not run and has left its cluster. It joins the cluster of another broker with its data."""
        self._launch(self._broker(broker_id), "--join", self._broker(broker_at).peer_address)

    @contextmanager
    def clone(self, broker_id: int) -> Iterator[None]:
        """Run a second broker, with its own addresses, on a copy of the data of a broker that does not run now. Kill it at the end."""
        directory = self.root / "clone"
        data_dir = directory / f"broker-{broker_id}"
        try:
            shutil.copytree(self.data_dir(broker_id).resolve(), data_dir)
            command = _launcher(directory / PLACES, {str(broker_id): {**self._place(broker_id), "data_dir": ""}})
            broker = BrokerProcess(broker_id, directory, command)
            hosts = [address.rpartition(":") for address in self.addresses_of(broker_id)]
            broker.addresses = Addresses(*(f"{host}:{_port_of_clone(int(port))}" for host, _, port in hosts))
            self._launch(broker)
            try:
                yield
            finally:
                broker.kill()
                self._forget(broker)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    @property
    def has_clock_orders(self) -> bool:
        return bool(self._clocks)

    @property
    def has_volumes(self) -> bool:
        return bool(self._volumes)

    @property
    def has_disk_orders(self) -> bool:
        return bool(self._disks)

    def lose_power(self, *broker_ids: int) -> None:
        """Cut the power of these machines simultaneously: first nothing more reaches their disks, then their processes end."""
        for broker_id in broker_ids:
            self._volumes[broker_id].lose_power()
        for broker_id in broker_ids:
            if self.is_running(broker_id):
                self.kill(broker_id)
        for broker_id in broker_ids:
            self._volumes[broker_id].come_back()

    def wipe(self, broker_id: int) -> None:
        """Replace the disk of a broker that does not run with an empty one."""
        data_dir = self.data_dir(broker_id)
        wipe(data_dir.resolve())
        if broker_id in self._volumes:
            data_dir.unlink()  # the launcher creates the link again: until then the cluster sees no data

    def remove_broker(self, broker_id: int) -> None:
        """Drain a broker, remove it from the cluster, and stop it. Its place is not used again: its data stay on its volume."""
        self._last_id = max(self._last_id, *self.broker_ids)
        super().remove_broker(broker_id)

    def forget(self, broker_id: int) -> None:
        """Forget a dead broker that an operator has removed by force. Its place is not used again."""
        self._last_id = max(self._last_id, *self.broker_ids)
        del self._brokers[broker_id]
        self._count = len(self._brokers)

    def leader_epochs(self, topic: str) -> dict[int, int]:
        """Return the leader epoch of each group, as a running broker sees it now."""
        request = queue_pb2.DescribeTopicRequest(name=topic)
        answer = self._ask(DESCRIBE_TOPIC, request)
        return {leader.group_id: leader.leader_epoch for leader in answer.leaders}

    def restart_all(self) -> None:
        """Start every broker that is down and wait until each is ready."""
        down = [broker_id for broker_id in self.broker_ids if not self.is_running(broker_id)]
        for broker_id in down:
            self.restart(broker_id, wait=False)
        for broker_id in down:
            self.wait_ready(broker_id)
