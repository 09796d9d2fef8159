"""Bugs of the recovery of partitions that have lost their majority."""

# ruff: noqa: ANN401, D103 -- a mutant has the parameters of the product's method, and its text is in the decorator

from __future__ import annotations

from typing import Any

from sim.cluster.mutants.controller import _CALM
from sim.cluster.mutants.registry import mutant, replace_method

_LOSSES = {
    **_CALM, "recover": 9, "move_replicas": 0, "add_machine": 0, "defect": 0, "machines": 5, "metadata_voters": 5,
    "replication_factor": 3, "fault_every": 0.5,
}  # fmt: skip


@mutant("machine", "the group without a majority stays in metadata: its returning replicas elect a leader", **_LOSSES)
def old_group_stays() -> None:
    from raftmq.fsm.metadata_tables import MetadataTables

    def make(replace_partition: Any) -> Any:
        def beside(self: Any, topic: Any, old: Any, new: Any) -> None:
            replace_partition(self, topic, old, new)
            self.put_partition(old)

        return beside

    replace_method(MetadataTables, "replace_partition", make)


@mutant("machine", "a recovered group keeps its old id", **_LOSSES)
def recovered_group_keeps_its_id() -> None:
    from raftmq.fsm import metadata, metadata_recoveries

    class SameId:
        """The tables, whose next group id is the old one."""

        def __init__(self, tables: Any, group_id: int) -> None:
            self._tables, self._group_id = tables, group_id

        def __getattr__(self, name: str) -> Any:
            return getattr(self._tables, name)

        @property
        def cluster(self) -> Any:
            import msgspec

            return msgspec.structs.replace(self._tables.cluster, next_group_id=self._group_id)

        def update_cluster(self, **changes: Any) -> None:
            changes.pop("next_group_id", None)
            self._tables.update_cluster(**changes)

        def replace_partition(self, topic: Any, old: Any, new: Any) -> None:
            self._tables.put_partition(new)

    def make(recover: Any) -> Any:
        return lambda tables, command, now_ms: recover(SameId(tables, command.group_id), command, now_ms)

    replace_method(metadata_recoveries, "recover_partition", make)
    metadata.recover_partition = metadata_recoveries.recover_partition  # type: ignore[attr-defined]


@mutant("store", "the founder of a recovered group starts empty", **_LOSSES)
def founder_starts_empty() -> None:
    from raftmq.broker.cluster import replica_manager
    from raftmq.broker.cluster.replica_files import create_replica
    from raftmq.broker.replica.initial_state import founder_state
    from raftmq.raft.membership import Membership

    def empty(store: Any, registry: Any, key: Any, old: Any, term: Any) -> None:
        create_replica(store, registry, key, founder_state(Membership((key.replica_id,))))

    replica_manager.found_replica = empty  # type: ignore[attr-defined]


@mutant("store", "the kept replica is retired before its founder continues it", **_LOSSES)
def kept_replica_is_retired() -> None:
    from raftmq.broker.cluster.replica_manager import ReplicaManager

    replace_method(ReplicaManager, "_is_to_be_continued", lambda _: lambda self, key: False)
