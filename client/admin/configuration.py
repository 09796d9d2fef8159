"""Settings of brokers: `Admin` offers these functions as methods."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raftmq.client.base.arguments import check_positive, check_whole
from raftmq.client.connection.resolver import Resolver
from raftmq.errors import InvalidArgumentError
from raftmq.methods import ALTER_CONFIG, DESCRIBE_CONFIG, LIST_CONFIG
from raftmq.proto import queue_pb2 as pb

Plain = str | int | float | bool | list[str] | None
"""A value of a setting."""


@dataclass(frozen=True, slots=True)
class RuntimeSetting:
    """A setting that can be changed while brokers run."""

    key: str
    value: str | None
    """The cluster's value for all brokers. None: each broker has the value with which it was started, and topics have the default."""
    broker_values: Mapping[int, str]
    """The cluster's values for single brokers, by broker id."""
    scope: str
    """The brokers for which the setting can be changed: ``"all brokers, or one"`` or ``"all brokers"``."""
    meaning: str


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """The value of a setting that is in force on a broker."""

    value: Plain
    source: str
    """``"default"``, ``"file PATH"``, ``"environment RAFTMQ_KEY"``, ``"flag --key"``, ``"--set key"``, ``"cluster"`` or ``"cluster for this broker"``."""
    meaning: str


async def alter_config(
    resolver: Resolver, timeout_seconds: float, changes: Mapping[str, str], unset: Sequence[str], broker_id: int | None
) -> None:
    """Change settings of one broker or of all."""
    if not changes and not unset:
        raise InvalidArgumentError("give at least one setting in set or unset")
    request = pb.AlterConfigRequest(broker_id=_broker(broker_id), set=changes, unset=unset)
    response = await resolver.call_any(ALTER_CONFIG, request, timeout_seconds)
    resolver.record_revision(response.metadata_revision)


async def list_config(resolver: Resolver, timeout_seconds: float) -> list[RuntimeSetting]:
    """Return the settings that can be changed at run time."""
    response = await resolver.call_any(LIST_CONFIG, pb.ListConfigRequest(), timeout_seconds, is_read=True)
    resolver.record_revision(response.metadata_revision)
    return [
        RuntimeSetting(
            one.key,
            one.value if one.HasField("value") else None,
            dict(sorted(one.broker_values.items())),
            one.scope,
            one.meaning,
        )
        for one in response.settings
    ]


async def describe_config(resolver: Resolver, timeout_seconds: float, broker_id: int) -> dict[str, ConfigValue]:
    """Return the settings in force on a broker."""
    request = pb.DescribeConfigRequest(broker_id=_broker(broker_id), metadata_revision=resolver.metadata_revision)
    response = await resolver.call_any(DESCRIBE_CONFIG, request, timeout_seconds, is_read=True)
    return {one.key: ConfigValue(json.loads(one.value), one.source, one.meaning) for one in response.values}


def _broker(broker_id: int | None) -> int:
    if broker_id is None:
        return 0
    check_whole(broker_id=broker_id)
    check_positive(broker_id=broker_id)
    return broker_id
