"""Changes of settings at run time: each refusal changes nothing, and the settings in force have a source."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from raftmq.broker.base.request_error import RequestError
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.fsm.metadata_commands import AlterConfig, RaiseFeatureLevel
from raftmq.fsm.topic_config import RETENTION_MS
from raftmq.proto import queue_pb2 as pb
from raftmq.types import LogIndex

from tests.support.broker.harness import Harness, running


@contextlib.asynccontextmanager
async def cluster() -> AsyncIterator[Harness]:
    """Yield node 1 of two at the newest feature level."""
    async with running() as node:
        for number in (1, 2):
            await node.register(number, f"uuid-{number}", feature_level_max=FEATURE_LEVEL)
        await node._metadata(RaiseFeatureLevel(FEATURE_LEVEL))
        yield node


async def refusal(node: Harness, request: pb.AlterConfigRequest) -> RequestError:
    before = node.metadata.state_machine.revision
    with pytest.raises(RequestError) as caught:
        await node.configuration.alter_config(request, node.call(1.0))
    assert node.metadata.state_machine.revision == before, "refused before anything was proposed"
    return caught.value


async def test_settings_are_set_and_unset_for_all_and_for_one():
    async with cluster() as node:
        alter, metadata = node.configuration.alter_config, node.metadata.state_machine
        await alter(pb.AlterConfigRequest(set={"log_level": "debug", "retention.ms": "1000"}), node.call())
        done = await alter(pb.AlterConfigRequest(broker_id=2, set={"log_level": "error"}), node.call())
        assert done.metadata_revision == metadata.revision
        assert metadata.config() == {"log_level": "debug", "retention.ms": "1000"}
        assert metadata.config(2) == {"log_level": "error"}
        await alter(pb.AlterConfigRequest(broker_id=2, unset=["log_level", "scrub_bytes_per_second"]), node.call())
        assert metadata.config(2) == {}


async def test_each_refusal_names_its_reason():
    async with cluster() as node:
        for request, code, words in (
            (pb.AlterConfigRequest(set={"log_levle": "debug"}), pb.INVALID_CONFIG, "did you mean log_level?"),
            (pb.AlterConfigRequest(unset=["log_levle"]), pb.INVALID_CONFIG, "did you mean log_level?"),
            (pb.AlterConfigRequest(set={"listen": "a:1"}), pb.INVALID_CONFIG, "cannot be changed at run time"),
            (pb.AlterConfigRequest(set={"log_level": "loud"}), pb.INVALID_CONFIG, "must be debug or info"),
            (
                pb.AlterConfigRequest(set={"log_level": "info"}, unset=["log_level"]),
                pb.INVALID_CONFIG,
                "both set and unset",
            ),
            (
                pb.AlterConfigRequest(broker_id=1, set={"retention.ms": "5"}),
                pb.INVALID_CONFIG,
                "one value for all brokers",
            ),
            (pb.AlterConfigRequest(broker_id=9, set={"log_level": "info"}), pb.UNKNOWN_BROKER, "has no broker 9"),
        ):
            refused = await refusal(node, request)
            assert refused.code == code
            assert words in str(refused)


async def test_a_setting_of_a_newer_version_can_be_removed():
    async with cluster() as node:
        await node._metadata(AlterConfig(0, {"of.the.future": "1"}))
        listed = await node.configuration.list_config(pb.ListConfigRequest(), node.call())
        assert [(one.key, one.value, one.meaning) for one in listed.settings][-1] == (
            "of.the.future", "1", "a setting of a newer version",
        )  # fmt: skip
        await node.configuration.alter_config(pb.AlterConfigRequest(unset=["of.the.future"]), node.call())
        assert node.metadata.state_machine.config() == {}


async def test_a_cluster_of_an_older_feature_level_changes_nothing():
    async with running() as node:
        refused = await refusal(node, pb.AlterConfigRequest(set={"log_level": "debug"}))
        assert refused.code == pb.UNSUPPORTED_VERSION
        assert "raftmq cluster raise-level" in str(refused)


async def test_the_list_has_the_clusters_values_and_the_exceptions():
    async with cluster() as node:
        await node._metadata(AlterConfig(0, {"log_level": "debug"}))
        await node._metadata(AlterConfig(2, {"log_level": "error"}))
        listed = (await node.configuration.list_config(pb.ListConfigRequest(), node.call())).settings
        level = next(one for one in listed if one.key == "log_level")
        assert (level.value, dict(level.broker_values), level.scope) == ("debug", {2: "error"}, "all brokers, or one")
        others = [one for one in listed if one.key != "log_level"]
        assert others
        assert not any(one.HasField("value") or one.broker_values for one in others)


async def test_a_broker_describes_its_settings_with_their_sources():
    async with cluster() as node:
        await node._metadata(AlterConfig(0, {"log_level": "debug", "retention.ms": "1000"}))
        node.runtime_config.follow(node.metadata.state_machine, node.node_id)
        answer = await node.configuration.describe_config(pb.DescribeConfigRequest(broker_id=1), node.call())
        found = {one.key: (json.loads(one.value), one.source) for one in answer.values}
        assert answer.broker_id == 1
        assert found["log_level"] == ("debug", "cluster")
        assert found["rack"] == ("", "default")
        assert found["join"] == ([], "default")
        assert found["retention.ms"] == ("1000", "cluster")
        assert found["retention.bytes"] == ("-1", "default")


async def test_a_default_that_this_version_does_not_understand_is_not_the_clusters():
    async with cluster() as node:
        await node._metadata(AlterConfig(0, {"retention.ms": "of the future"}))
        answer = await node.configuration.describe_config(pb.DescribeConfigRequest(broker_id=1), node.call())
        (found,) = (one for one in answer.values if one.key == "retention.ms")
        assert (json.loads(found.value), found.source) == (RETENTION_MS.default, "default")


async def test_a_broker_that_has_just_joined_is_found(monkeypatch: pytest.MonkeyPatch):
    """Metadata that lack it are confirmed first, as here, where the confirmation brings the broker with number 1."""
    async with running() as node:
        await node.register(2, "uuid-2")
        read_index = node.metadata.read_index

        async def joined() -> LogIndex:
            await node.register(1, "uuid-1")
            return await read_index()

        monkeypatch.setattr(node.metadata, "read_index", joined)
        answer = await node.configuration.describe_config(pb.DescribeConfigRequest(broker_id=1), node.call())
        assert answer.broker_id == 1


@pytest.mark.parametrize("is_forwarded", [False, True])
async def test_a_broker_confirms_its_settings_before_it_describes_them(
    monkeypatch: pytest.MonkeyPatch, is_forwarded: bool
):
    """Another process may have changed a setting, so the request names no revision."""
    async with cluster() as node:
        read_index = node.metadata.read_index

        async def changed() -> LogIndex:
            await node._metadata(AlterConfig(0, {"log_level": "debug"}))
            node.runtime_config.follow(node.metadata.state_machine, node.node_id)
            return await read_index()

        monkeypatch.setattr(node.metadata, "read_index", changed)
        request = pb.DescribeConfigRequest(broker_id=1)
        answer = await node.configuration.describe_config(request, node.call(is_forwarded=is_forwarded))
        assert {one.key: one.value for one in answer.values}["log_level"] == '"debug"'


async def test_a_broker_without_a_metadata_majority_describes_its_settings(monkeypatch: pytest.MonkeyPatch):
    async with cluster() as node:

        async def never() -> LogIndex:
            await asyncio.get_running_loop().create_future()
            raise AssertionError

        async def refused() -> LogIndex:
            raise RequestError(pb.NO_LEADER, "the metadata group has no leader")

        for read_index in (never, refused):
            monkeypatch.setattr(node.metadata, "read_index", read_index)
            answer = await node.configuration.describe_config(pb.DescribeConfigRequest(broker_id=1), node.call(0.02))
            assert answer.broker_id == 1


async def test_an_unknown_broker_cannot_be_described():
    async with cluster() as node:
        with pytest.raises(RequestError, match="has no broker 9"):
            await node.configuration.describe_config(pb.DescribeConfigRequest(broker_id=9), node.call())
