"""`ChaosCluster`: a `LocalCluster` whose links, disks and volumes can be made to fail.

Its brokers are started through `launch.py`, each in its place. Invariants: when the context ends, however it ends, no broker runs, and no
name space, mount, loop device or temporary file of it is left.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from raftmq.proto import queue_pb2
from raftmq.testing import LocalCluster

from tests.chaos import disk_shim
from tests.chaos.damage import wipe
from tests.chaos.disk_shim import DiskOrders
from tests.chaos.leash import Leash
from tests.chaos.links import Links, NoLinks
from tests.chaos.machine import missing_for_namespaces
from tests.chaos.namespaces import Namespaces
from tests.chaos.proxies import Proxies
from tests.chaos.volume import Volume

LAUNCHER = Path(__file__).with_name("launch.py")
VOLUME_BYTES = 1 << 30
START_SECONDS = 60.0
FAST = ("data_tick_seconds=0.2", "data_election_ticks=8", "metadata_tick_seconds=0.1", "controller_seconds=0.3")
"""Elections after 1.6 to 3.2 s: a short run sees several. Still slower than a busy machine is late."""


def best_links(nodes: int) -> Links:
    """Name spaces where they are permitted, else proxies."""
    return Proxies(nodes) if missing_for_namespaces() else Namespaces(nodes)


class ChaosCluster(LocalCluster):
    """A `LocalCluster` with handles on what can fail.

    Args:
        brokers: How many.
        links: Makes the links; `best_links` or one of the two kinds it chooses from. None: plain loopback.
        has_disk_orders: Whether each broker's disk is under orders (`disk`). Needs a compiler.
        has_volumes: Whether each broker's data is on a volume of its own (`volume`). Needs root.
        settings: ``key=value`` for every broker.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        links: Callable[[int], Links] | None = None,
        has_disk_orders: bool = False,
        has_volumes: bool = False,
        settings: Sequence[str] = FAST,
    ) -> None:
        self._stack = ExitStack()
        self.root = Path(tempfile.mkdtemp(prefix="raftmq-chaos-"))
        try:
            self._stack.callback(shutil.rmtree, self.root, ignore_errors=True)
            # Tried again while volumes in it, which hang on leashes of their own, are still mounted.
            release = f"for attempt in 1 2 3 4 5; do rm -rf {self.root} && break; sleep 0.5; done"
            self._stack.callback(Leash(release=release).close)
            self.links: Links = links(brokers) if links else NoLinks()
            self._stack.callback(self.links.close)
            self._volumes: dict[int, Volume] = {}
            self._disks: dict[int, DiskOrders] = {}
            directory = self.root / "cluster"
            directory.mkdir()
            nodes = range(1, brokers + 1)
            if has_disk_orders:
                library = disk_shim.build(self.root)
                self._disks = {n: DiskOrders(self.root, library, f"disk-{n}") for n in nodes}
                for disk in self._disks.values():
                    self._stack.callback(disk.close)
            for n in nodes if has_volumes else ():
                self._volumes[n] = Volume(self.root, f"volume-{n}", VOLUME_BYTES)
                self._stack.callback(self._volumes[n].close)
                (directory / f"node-{n}").symlink_to(self._volumes[n].path / "data")
            super().__init__(
                brokers,
                directory=directory,
                first_port=self.links.first_port,
                timeout_seconds=START_SECONDS,
                broker_arguments=[word for setting in settings for word in ("--set", setting)],
                command=self._command_through_launcher(nodes),
            )
        except BaseException:
            self._stack.close()
            raise

    def _command_through_launcher(self, nodes: Sequence[int]) -> list[str]:
        places = {}
        for node_id in nodes:
            place = self.links.place(node_id)
            if node_id in self._disks:
                place = replace(place, environment={**place.environment, **self._disks[node_id].environment})
            places[str(node_id)] = {
                **asdict(place),
                "data_dir": str(self._volumes[node_id].path / "data") if node_id in self._volumes else "",
            }
        path = self.root / "places.json"
        path.write_text(json.dumps(places))
        return [sys.executable, "-I", "-S", str(LAUNCHER), str(path), sys.executable, "-m", "raftmq"]

    def _seen_address(self, node_id: int, address: str) -> str:
        host, _, port = address.rpartition(":")
        return f"{self.links.place(node_id).seen_host or host}:{port}"

    def close(self) -> None:
        """Kill every broker and give back everything; `with` does this. Safe to call again."""
        super().close()
        self._stack.close()

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)

    # ------------------------------------------------------------------------------------------------------- faults

    def disk(self, node_id: int) -> DiskOrders:
        """The orders of the broker's disk."""
        return self._disks[node_id]

    def volume(self, node_id: int) -> Volume:
        """The volume with the broker's data."""
        return self._volumes[node_id]

    @property
    def has_volumes(self) -> bool:
        return bool(self._volumes)

    @property
    def has_disk_orders(self) -> bool:
        return bool(self._disks)

    def lose_power(self, *node_ids: int) -> None:
        """These machines lose power at one moment: nothing reaches their disks any more, then their processes end."""
        for node_id in node_ids:
            self._volumes[node_id].lose_power()
        for node_id in node_ids:
            if self.is_running(node_id):
                self.kill(node_id)
        for node_id in node_ids:
            self._volumes[node_id].come_back()

    def wipe(self, node_id: int) -> None:
        """The disk of a broker that does not run is replaced by an empty one."""
        data_dir = self.data_dir(node_id)
        wipe(data_dir.resolve())
        if node_id in self._volumes:
            data_dir.unlink()  # the launcher makes it again; until then the cluster sees that there is no data

    def leader_epochs(self, topic: str) -> dict[int, int]:
        """Group → epoch of its leader, as a running broker sees it now."""
        request = queue_pb2.DescribeTopicRequest(name=topic)
        answer = self._ask("DescribeTopic", request, queue_pb2.DescribeTopicResponse)
        return {leader.group_id: leader.leader_epoch for leader in answer.leaders}

    def restart_all(self) -> None:
        """Start every broker that is down; they serve once a majority of them runs."""
        down = [node_id for node_id in self.node_ids if not self.is_running(node_id)]
        for node_id in down:
            self.restart(node_id, wait=False)
        for node_id in down:
            self.wait_ready(node_id)
