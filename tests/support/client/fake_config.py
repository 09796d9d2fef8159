# ruff: noqa: N802 - the names of gRPC's servicer methods
"""The settings of a fake cluster. It knows one key, and a broker is always started with its default."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from raftmq.proto import queue_pb2 as pb

if TYPE_CHECKING:
    from tests.support.client.fake_broker import FakeCluster

KEY = "log_level"


class FakeConfigService:
    """The methods of Admin about settings. A mixin of `FakeBroker`."""

    cluster: FakeCluster

    async def refuse(self, context, code: int) -> None:
        raise NotImplementedError

    async def AlterConfig(self, request, context):
        if request.broker_id and request.broker_id not in self.cluster.brokers:
            await self.refuse(context, pb.UNKNOWN_BROKER)
        if {*request.set, *request.unset} - {KEY, "retention.ms"}:
            await self.refuse(context, pb.INVALID_CONFIG)
        config = self.cluster.config.setdefault(request.broker_id, {})
        config.update(request.set)
        for key in request.unset:
            config.pop(key, None)
        return pb.AlterConfigResponse(metadata_revision=self.cluster.revision)

    async def ListConfig(self, request, context):
        config = self.cluster.config
        exceptions = {broker_id: texts[KEY] for broker_id, texts in config.items() if broker_id and KEY in texts}
        setting = pb.RuntimeSetting(
            key=KEY,
            value=config.get(0, {}).get(KEY),
            broker_values=exceptions,
            scope="all brokers, or one",
            meaning="minimum log level",
        )
        return pb.ListConfigResponse(metadata_revision=self.cluster.revision, settings=[setting])

    async def DescribeConfig(self, request, context):
        if request.broker_id not in self.cluster.brokers:
            await self.refuse(context, pb.UNKNOWN_BROKER)
        value, source = "info", "default"
        for broker_id, name in ((0, "cluster"), (request.broker_id, "cluster for this broker")):
            if KEY in self.cluster.config.get(broker_id, {}):
                value, source = self.cluster.config[broker_id][KEY], name
        return pb.DescribeConfigResponse(
            broker_id=request.broker_id,
            values=[
                pb.ConfigValue(key=KEY, value=json.dumps(value), source=source, meaning="minimum log level"),
                pb.ConfigValue(key="join", value='["a:1", "b:2"]', source="flag --join", meaning="peers"),
                pb.ConfigValue(key="rack", value="null", source="default", meaning="rack"),
            ],
        )
