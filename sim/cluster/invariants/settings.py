"""`SettingsAreKept` and `why_not_followed`: each change of run-time settings has exactly its effect on the metadata, and in the end each
broker uses the values in the metadata. Both are computed in a slow and obvious way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from raftmq.broker.base.config import CONFIG_KEYS
from raftmq.broker.node import Node
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import AlterConfig, Done, RemoveNode, decode_command
from raftmq.raft.entry import Entry, EntryKind

from sim.core.invariants.violation import demand


class KeptSettings:
    """The check of one replica of the metadata."""

    def __init__(self, machine: Metadata) -> None:
        """Take the state machine, which stays the same object for the replica's life."""
        self._machine = machine
        self._expected = _settings_of(machine)

    def on_restored(self) -> None:
        """Believe a snapshot: the states of replicas are compared elsewhere."""
        self._expected = _settings_of(self._machine)

    def on_applied(self, entry: Entry, result: object) -> None:
        """Check the effect of an entry, right after it was applied."""
        command = decode_command(entry.payload) if entry.kind is EntryKind.COMMAND else None
        if isinstance(command, AlterConfig) and isinstance(result, Done):
            known = self._expected.setdefault(command.node_id, {})
            for name, text in command.changes.items():
                if text is None:
                    known.pop(name, None)
                else:
                    known[name] = text
        elif isinstance(command, RemoveNode) and isinstance(result, Done):
            self._expected.pop(command.node_id, None)
        else:
            return
        expected = {node_id: texts for node_id, texts in self._expected.items() if texts}
        found = _settings_of(self._machine)
        demand(found == expected, "SettingsAreKept", f"settings are {found} and should be {expected}")


def _settings_of(machine: Metadata) -> dict[int, dict[str, str]]:
    node_ids = (0, *(node.node_id for node in machine.nodes()))
    return {node_id: dict(texts) for node_id in node_ids if (texts := machine.config(node_id))}


def why_not_followed(node: Node, metadata: Metadata) -> str:
    """Return the first setting that a broker does not use although metadata says so, or an empty string."""
    texts: Mapping[str, str] = {**metadata.config(), **metadata.config(node.view.node_id)}
    values: dict[str, Any] = {
        name: CONFIG_KEYS[name].parse(text) for name, text in texts.items()
    }  # each key has its type
    wanted = replace(node.config, **values)
    if node.runtime_config.config != wanted:
        return f"broker {node.view.node_id} uses {node.runtime_config.config} and should use {wanted}"
    rate, seconds = node.upkeep.scrubber.bytes_per_second, node.view.timing.offsets_retention_seconds
    if (rate, seconds) != (wanted.scrub_bytes_per_second, wanted.offsets_retention_seconds):
        return f"broker {node.view.node_id} scrubs {rate} bytes per second and keeps offsets for {seconds} s"
    return ""
