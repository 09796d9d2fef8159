"""Bugs of moving replicas on purpose: joint consensus, draining, balancing."""

# ruff: noqa: ANN401, D103 -- a mutant has the parameters of the product's method, and its text is in the decorator

from __future__ import annotations

from typing import Any

from sim.cluster.mutants.registry import mutant, replace_method

_CALM = {
    "kill_all": 0, "sleep_all": 0, "wrong_clock": 0, "full_disk": 0, "full_map": 0, "wipe": 0, "flip": 0, "remove_node": 0,
    "replace_replica": 0, "stale_copy": 0,
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
