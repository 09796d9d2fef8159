"""Bugs of an operator's orders: moves, draining, balancing, replication factors, removals, names of producers."""

# ruff: noqa: ANN401, D103 -- a mutant has the parameters of the product's method, and its text is in the decorator

from __future__ import annotations

from typing import Any

from sim.cluster.mutants.registry import mutant, replace_method

_CALM = {
    "kill_all": 0, "sleep_all": 0, "wrong_clock": 0, "full_disk": 0, "full_map": 0, "wipe": 0, "flip": 0, "remove_node": 0,
    "replace_replica": 0, "stale_copy": 0, "renewed_copy": 0, "reshape": 0, "retire_node": 0,
}  # fmt: skip
"""No fault that keeps brokers busy with anything but moves."""


@mutant(
    "service",
    "a move forgets the joint state: the old and the new voters decide alone",
    **{
        **_CALM,
        "move_replicas": 9,
        "isolate": 6,
        "split": 6,
        "kill": 0,
        "operate": 0,
        "fault_every": 0.25,
        "machines": 5,
    },
)
def move_forgets_joint() -> None:
    from raftmq.raft import membership

    def make(enter: Any) -> Any:
        def direct(before: Any, change: Any) -> Any:
            return membership.leave_joint(enter(before, change))

        return direct

    replace_method(membership, "enter_joint", make)


@mutant(
    "service",
    "the rate of moves is ignored: copies are sent as fast as the network takes them",
    **{
        **_CALM,
        "operate": 9,
        "move_replicas": 9,
        "fault_every": 0.25,
        "machines": 5,
        "replication_factor": 3,
        "value_bytes_max": 2_000,
    },
)
def moves_ignore_their_rate() -> None:
    from raftmq.broker.replica.copy_pace import GroupPace

    replace_method(GroupPace, "may_send", lambda may_send: lambda self: True)


@mutant(
    "machine",
    "a given-up move forgets to roll back: the new replica stays wanted",
    **{**_CALM, "operate": 9, "move_replicas": 9, "fault_every": 0.25, "machines": 5, "replication_factor": 3},
)
def given_up_move_stays() -> None:
    from raftmq.fsm import metadata_replicas

    replace_method(metadata_replicas, "without_move", lambda without_move: lambda partition: partition)


@mutant(
    "service",
    "a drain stops early: some replicas stay on the draining broker",
    **{**_CALM, "operate": 9, "machines": 5, "replication_factor": 3},
)
def drain_stops_early() -> None:
    from raftmq.broker.cluster.balance_plan import _Layout

    def make(plan: Any) -> Any:
        def some(self: Any) -> Any:
            self._draining = set[int]()
            return plan(self)

        return some

    replace_method(_Layout, "empty_draining", make)


@mutant(
    "service",
    "balancing flaps: preferred leaders move although they are even",
    **{**_CALM, "operate": 9, "machines": 4, "replication_factor": 3},
)
def balance_flaps() -> None:
    from raftmq.broker.cluster.balance_plan import _Layout

    def make(choose: Any) -> Any:
        def restless(self: Any, *, is_automatic: bool) -> None:
            choose(self, is_automatic=is_automatic)
            for group_id, partition in self._partitions.items():
                if is_automatic and not partition.is_fixed and len(self._places[group_id]) > 1:
                    self._prefer(group_id, self._places[group_id][-1])
                    self._note(group_id, 5)

        return restless

    replace_method(_Layout, "choose_leaders", make)


@mutant(
    "service",
    "a drain forgets that the broker is draining when it looks for a place: replicas come back to it",
    **{**_CALM, "operate": 9, "machines": 5, "replication_factor": 3},
)
def draining_broker_is_filled() -> None:
    from raftmq.broker.cluster.balance_plan import _Layout

    def make(create: Any) -> Any:
        def with_all(self: Any, nodes: Any, partitions: Any, replicas_max: Any, is_available: Any) -> None:
            create(self, nodes, partitions, replicas_max, is_available)
            self._takers = sorted(node.node_id for node in nodes if node.state in ("active", "draining"))

        return with_all

    replace_method(_Layout, "__init__", make)


@mutant(
    "service",
    "a raised replication factor is ignored: partitions get no further replicas",
    **{**_CALM, "operate": 0, "reshape": 9, "machines": 5, "replication_factor": 3, "fault_every": 0.5},
)
def raised_factor_ignored() -> None:
    from raftmq.broker.cluster.replacement_plan import WantedPartition

    WantedPartition.missing_count = property(lambda self: 0)  # type: ignore[assignment,method-assign]


@mutant(
    "service",
    "a lowered replication factor is ignored: surplus replicas stay",
    **{**_CALM, "reshape": 9, "machines": 5, "replication_factor": 3, "fault_every": 0.5},
)
def lowered_factor_ignored() -> None:
    from raftmq.broker.cluster.balance_plan import _Layout

    replace_method(_Layout, "remove_surplus", lambda _: lambda self: None)


@mutant(
    "machine",
    "a broker that still holds replicas can be removed as if it were empty",
    **{**_CALM, "retire_node": 9, "machines": 5, "replication_factor": 3, "fault_every": 0.5},
)
def full_broker_removed() -> None:
    from raftmq.fsm import metadata, metadata_nodes

    class Unwatched:
        """The tables, in which no broker seems to hold anything."""

        def __init__(self, tables: Any) -> None:
            self._tables = tables

        def __getattr__(self, name: str) -> Any:
            return getattr(self._tables, name)

        def groups_of_node(self, node_id: int) -> tuple[int, ...]:
            return ()

    def make(remove: Any) -> Any:
        return lambda tables, command: remove(tables if command.is_forced else Unwatched(tables), command)

    replace_method(metadata_nodes, "remove_node", make)
    metadata.remove_node = metadata_nodes.remove_node  # type: ignore[attr-defined]


@mutant(
    "machine",
    "names of producers are removed although they are in use: a successor gets another id and fences nobody",
    **{**_CALM, "reshape": 9, "namesakes": 2, "fault_every": 0.25},
)
def names_in_use_removed() -> None:
    from raftmq.fsm.metadata_commands import ForgetProducerNames

    ForgetProducerNames.used_until_ms = property(lambda self: 1 << 60)  # type: ignore[assignment]


@mutant(
    "service",
    "a broker does not follow the settings that it finds in a snapshot, or in its own file when it starts",
    **{**_CALM, "configure": 9, "fault_every": 0.5},
)
def settings_followed_only_from_the_log() -> None:
    from raftmq.broker.cluster.runtime_config import RuntimeConfig

    def make(follow: Any) -> Any:
        def only_changes(self: Any, metadata: Any, node_id: Any) -> None:
            if self._followed is None:  # the first look
                self._followed = (metadata.config(), metadata.config(node_id))
            follow(self, metadata, node_id)

        return only_changes

    replace_method(RuntimeConfig, "follow", make)


@mutant(
    "machine",
    "a setting of one broker is stored for all",
    **{**_CALM, "configure": 9, "fault_every": 0.5},
)
def setting_of_one_for_all() -> None:
    from raftmq.fsm.metadata_tables import MetadataTables

    replace_method(MetadataTables, "put_config", lambda put: lambda self, node_id, config: put(self, 0, config))


@mutant(
    "service",
    "the files of a replica that is to leave are deleted before its group can do without it",
    **{
        **_CALM,
        "move_replicas": 9,
        "kill": 4,
        "kill_all": 2,
        "operate": 0,
        "fault_every": 0.25,
        "machines": 5,
        "replication_factor": 3,
    },
)
def left_replica_reported_early() -> None:
    from raftmq.broker.cluster.reconciler import Reconciler
    from raftmq.storage.log_store import ReplicaKey
    from raftmq.types import ReplicaId

    def early(replica: Any, wanted: Any) -> Any:
        return [ReplicaKey(replica.group_id, ReplicaId(one.replica_id)) for one in wanted.view.retiring]

    Reconciler._left = staticmethod(early)  # type: ignore[method-assign]


@mutant(
    "service",
    "a move leaves the old replicas in the group: the new ones are added, and nobody leaves",
    **{**_CALM, "move_replicas": 9, "operate": 0, "fault_every": 0.25, "machines": 5, "replication_factor": 3},
)
def moved_replica_never_leaves() -> None:
    from raftmq.broker.cluster import membership_plan
    from raftmq.raft.membership import MembershipOp

    def make(change: Any) -> Any:
        def only_additions(steps: Any, target: Any) -> Any:
            additions = [step for step in steps if step[0] is not MembershipOp.REMOVE]
            return change(additions, target) if additions else None

        return only_additions

    replace_method(membership_plan, "_change", make)


@mutant(
    "service",
    "a further replica that makes no progress stays wanted on its broker although another one is free",
    **{**_CALM, "stuck_growth": 9, "machines": 5, "replication_factor": 2},
)
def stuck_growth_waits() -> None:
    from raftmq.broker.services.nodes import NodesService

    async def wait(self: Any, partition: Any, report: Any, deadline: float) -> None:
        pass

    replace_method(NodesService, "_place_elsewhere", lambda place: wait)


@mutant(
    "service",
    "the members of a group do not get the partitions that a topic gets later",
    **{**_CALM, "grow_every": 1.0, "members": 2},
)
def group_overlooks_new_partitions() -> None:
    from raftmq.broker.consumer_groups import coordinator

    module: Any = coordinator
    replace_method(
        module,
        "is_planned_for",
        lambda is_planned: lambda metadata, group: group.row.epoch == group.row.target_epoch,
    )


@mutant(
    "service",
    "a new replica that has caught up and died gets a vote",
    **{
        **_CALM,
        "move_replicas": 9,
        "kill": 6,
        "operate": 0,
        "fault_every": 0.25,
        "machines": 5,
        "replication_factor": 1,
    },
)
def unreachable_newcomer_promoted() -> None:
    from raftmq.broker.cluster.reconciler import Reconciler

    def make(caught_up: Any) -> Any:
        def with_dead(self: Any, replica: Any) -> Any:
            host, self._host = self._host, _Connected(self._host)
            try:
                return caught_up(self, replica)
            finally:
                self._host = host

        return with_dead

    replace_method(Reconciler, "_caught_up", make)


class _Connected:
    """A reconciler's host that takes every node for reachable."""

    def __init__(self, host: Any) -> None:
        self._host = host

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def is_connected(self, node_id: int) -> bool:
        del node_id
        return True
