"""Change settings while brokers run, and describe the settings in force.

A change is replicated, so brokers that start later follow it. Everything that can be refused is refused before proposing.
"""

from __future__ import annotations

import contextlib
import json

import structlog
from raftmq.broker.base.config import CONFIG_KEYS
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.runtime_settings import (
    CLUSTER_SOURCE,
    DEFAULT_SOURCE,
    RUNTIME_SETTINGS,
    RuntimeSettingError,
    check_setting,
    require_setting,
)
from raftmq.broker.base.value_texts import plain
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.services.call import Call
from raftmq.broker.services.feature_level import require_level
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import Locator
from raftmq.broker.services.metadata_leader import MetadataLeader, on_metadata_leader
from raftmq.broker.services.move_messages import existing_node
from raftmq.broker.services.node_calls import NodeCalls
from raftmq.fsm.feature_levels import METADATA_LEVELS
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import AlterConfig, Done
from raftmq.fsm.topic_config import CLUSTER_DEFAULTS
from raftmq.proto import queue_pb2 as pb
from raftmq.types import NodeId

log = structlog.get_logger(__name__)


class ConfigurationService:
    """Answers the RPCs about settings of brokers."""

    def __init__(
        self, host: ServiceHost, locator: Locator[Partition], leader: MetadataLeader, calls: NodeCalls
    ) -> None:
        self._host = host
        self._locator = locator
        self.leader = leader
        self._calls = calls

    @property
    def _metadata(self) -> Metadata:
        return self._host.metadata.state_machine

    @on_metadata_leader
    async def alter_config(self, request: pb.AlterConfigRequest, call: Call) -> pb.AlterConfigResponse:
        """Set or remove run-time settings of one broker or of all.

        Raises:
            RequestError: INVALID_CONFIG, UNKNOWN_BROKER or UNSUPPORTED_VERSION (nothing changed), or any error of `MetadataLeader`.
        """
        metadata = self._metadata
        require_level(metadata, METADATA_LEVELS[AlterConfig], "changing settings at run time")
        if request.broker_id:
            existing_node(metadata, request.broker_id)
        both = set(request.set) & set(request.unset)
        if both:
            raise RequestError(pb.INVALID_CONFIG, f"{min(both)!r} is both set and unset")
        is_for_one, stored = bool(request.broker_id), metadata.config(request.broker_id)
        try:
            for name, text in request.set.items():
                check_setting(name, text, is_for_one=is_for_one)
            for name in request.unset:
                if name not in stored:  # a newer version may have stored others, which can always be removed
                    require_setting(name, is_for_one=is_for_one)
        except RuntimeSettingError as error:
            raise RequestError(pb.INVALID_CONFIG, str(error)) from None
        changes: dict[str, str | None] = {**dict(request.set), **dict.fromkeys(request.unset)}
        done = await self.leader.execute(AlterConfig(request.broker_id, changes), Done, call.deadline)
        return pb.AlterConfigResponse(metadata_revision=done.revision)

    @on_metadata_leader
    async def list_config(self, request: pb.ListConfigRequest, call: Call) -> pb.ListConfigResponse:
        """Return the settings that can be changed at run time, with the values that the cluster has for them."""
        metadata = self._metadata
        for_all = metadata.config()
        by_node = {node.node_id: metadata.config(node.node_id) for node in metadata.nodes()}
        known = [
            *RUNTIME_SETTINGS,
            *sorted({*for_all, *(name for texts in by_node.values() for name in texts)} - RUNTIME_SETTINGS.keys()),
        ]
        settings: list[pb.RuntimeSetting] = []
        for name in known:
            setting = RUNTIME_SETTINGS.get(name)
            settings.append(
                pb.RuntimeSetting(
                    key=name,
                    value=for_all.get(name),
                    broker_values={node_id: texts[name] for node_id, texts in by_node.items() if name in texts},
                    meaning=setting.meaning if setting is not None else "a setting of a newer version",
                    scope=setting.scope.value if setting is not None else "",
                )
            )
        return pb.ListConfigResponse(settings=settings, metadata_revision=metadata.revision)

    async def describe_config(self, request: pb.DescribeConfigRequest, call: Call) -> pb.DescribeConfigResponse:
        """Return the configuration in force on one broker, which is asked for it.

        Raises:
            RequestError: UNKNOWN_BROKER, after a quorum confirmed it; NOT_READY or NO_LEADER if none could; or one for a failed hop.
        """
        await self._locator.wait_revision(request.metadata_revision, call.deadline)
        if call.is_forwarded:
            return await self._describe_here(request, call)
        try:
            node = existing_node(self._metadata, request.broker_id)
        except RequestError:  # a broker that has just joined may be missing here
            await self._locator.confirm_metadata(call.deadline)
            node = existing_node(self._metadata, request.broker_id)
        return await self._calls.ask(NodeId(node.node_id), request, self._describe_here, call)

    async def _describe_here(self, request: pb.DescribeConfigRequest, call: Call) -> pb.DescribeConfigResponse:
        """Describe the settings of this node, including each change that was answered before the call.

        Without a metadata majority the answer has the settings that are in force here, which is the best that anybody knows.
        """
        now = self._host.loop.time()
        # half of the remaining time is for the answer
        limit = min(self._host.timing.describe_seconds, (call.deadline - now) / 2)
        with contextlib.suppress(RequestError):
            await self._locator.confirm_metadata(now + limit)
        return self._described()

    def _described(self) -> pb.DescribeConfigResponse:
        runtime, for_all = self._host.runtime_config, self._metadata.config()
        values = [
            pb.ConfigValue(
                key=name,
                value=json.dumps(plain(getattr(runtime.config, name))),
                source=runtime.source(name),
                meaning=key.meaning,
            )
            for name, key in CONFIG_KEYS.items()
        ]
        values.extend(
            pb.ConfigValue(
                key=key.name,
                value=json.dumps(key.text_in(for_all)),
                source=CLUSTER_SOURCE if key.is_accepted_in(for_all) else DEFAULT_SOURCE,
                meaning=RUNTIME_SETTINGS[key.name].meaning,
            )
            for key in CLUSTER_DEFAULTS
        )
        return pb.DescribeConfigResponse(broker_id=self._host.node_id, values=values)
