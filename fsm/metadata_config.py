"""The command about run-time settings: those that all brokers follow, and those of one broker.

It is a pure function over `MetadataTables`. The settings are texts whose meaning the brokers know (`broker/base/runtime_settings.py`), so each
version keeps those that it does not know. Only proposers refuse a text.
"""

from __future__ import annotations

from raftmq.fsm import codes
from raftmq.fsm.metadata_commands import AlterConfig, Done, Rejected
from raftmq.fsm.metadata_tables import EVERY_NODE, MetadataTables


def alter_config(tables: MetadataTables, command: AlterConfig) -> Done | Rejected:
    """Set or remove settings. The same command again is `Done`."""
    node = tables.node(command.node_id)
    if command.node_id != EVERY_NODE and (node is None or node.state == "removed"):
        return Rejected(codes.UNKNOWN_BROKER, f"there is no broker {command.node_id}")
    before = tables.config(command.node_id)
    merged: dict[str, str | None] = {**before, **command.changes}
    config = {key: value for key, value in merged.items() if value is not None}
    if config != before:
        tables.put_config(command.node_id, config)
    return Done(tables.cluster.revision)
