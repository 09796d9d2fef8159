"""The metadata of one node while there is none, and while a snapshot replaces it."""

from __future__ import annotations

import pytest
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.metadata_replica import MetadataReplica
from raftmq.fsm.metadata import Metadata
from raftmq.proto import queue_pb2 as pb
from raftmq.types import LogIndex

from tests.support.broker.whole_nodes import Nodes


async def test_metadata_that_is_being_replaced_is_still_known(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await nodes.serve("one", bootstrap=True)
    replica = node.view.metadata
    assert node.view.known_metadata is replica.state_machine
    with monkeypatch.context() as patch:
        # as from the arrival of a snapshot until it is installed
        patch.setattr(replica.core, "state_floor", LogIndex(replica.core.applied_index + 100))
        with pytest.raises(RequestError) as refused:
            _ = node.view.metadata
        assert refused.value.code == pb.NOT_READY
        assert node.view.known_metadata is replica.state_machine


async def test_no_metadata_is_known_before_the_first(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await nodes.serve("one", bootstrap=True)
    monkeypatch.setattr(node.view.metadata, "state_machine", Metadata())
    for ask in (lambda: node.view.metadata, lambda: node.view.known_metadata):
        with pytest.raises(RequestError) as refused:
            ask()
        assert refused.value.code == pb.NOT_READY


def test_a_broker_without_a_cluster_knows_no_metadata() -> None:
    metadata = MetadataReplica(None, None, None, None, lambda: None)
    for ask in (metadata.require, metadata.require_filled, metadata.require_known):
        with pytest.raises(RequestError) as refused:
            ask()
        assert refused.value.code == pb.NOT_FORMED
