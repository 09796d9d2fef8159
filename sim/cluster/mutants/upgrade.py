"""Bugs of clusters of two versions, and of the things that a later version adds."""

# ruff: noqa: ANN401, D103 -- a mutant has the parameters of the product's method, and its text is in the decorator

from __future__ import annotations

from typing import Any

from sim.cluster.mutants.registry import replace_method, upgrade_mutant


@upgrade_mutant("engine", "a leader proposes a command although the cluster's level does not permit it")
def proposer_ignores_the_level() -> None:
    from raftmq.broker.replica.replica import Replica

    replace_method(Replica, "_require_readable", lambda require: lambda self, proposals: None)


@upgrade_mutant("machine", "the level is raised although a broker does not support it")
def level_raised_too_early() -> None:
    from raftmq.broker.services import feature_level
    from raftmq.fsm import metadata_nodes

    for module in (feature_level, metadata_nodes):
        replace_method(module, "feature_level_refusal", lambda refusal: lambda current, nodes, level: None)


@upgrade_mutant("service", "a broker of an old version serves on after the level was raised")
def old_broker_serves_on() -> None:
    from raftmq.broker.node import Node

    def make(check: Any) -> Any:
        def lenient(self: Any) -> None:
            own, self._feature_level = self._feature_level, 1_000
            check(self)
            self._feature_level = own

        return lenient

    replace_method(Node, "_check_standing", make)


@upgrade_mutant("engine", "a frame of the newest wire version is sent on every connection")
def later_frames_everywhere() -> None:
    from raftmq.broker.peers.link import Link

    replace_method(Link, "carries", lambda carries: lambda self, frame_type: self.protocol is not None)


@upgrade_mutant("machine", "a new field of a row is written before it is used")
def unused_row_field_is_written() -> None:
    from raftmq.fsm.metadata_tables import ClusterRow

    from sim.cluster.upgrades.next_version import NextVersion

    class LoudClusterRow(ClusterRow, frozen=True, omit_defaults=False):
        note: int = 0

    NextVersion.row_type = LoudClusterRow


@upgrade_mutant(
    "machine", "a broker of an old version skips commands that it does not know, and leaders propose them too early"
)
def unknown_command_is_skipped() -> None:
    from raftmq.broker.replica.replica import Replica
    from raftmq.fsm import metadata
    from raftmq.fsm.metadata_commands import DeleteTopic

    from sim.cluster.upgrades.next_version import is_next_version

    def make(decode: Any) -> Any:
        nothing = DeleteTopic(0)  # which changes nothing
        return lambda payload: decode(payload) or (None if is_next_version() else nothing)

    replace_method(metadata, "decode_command", make)
    replace_method(Replica, "_require_readable", lambda require: lambda self, proposals: None)
