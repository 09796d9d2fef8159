"""Each kind of topic that metadata accepts can be served."""

import pytest
from raftmq.broker.partitions.kinds import KINDS, kind_of
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_topics import TOPIC_KINDS

from tests.support.broker.harness import running


def test_every_kind_that_metadata_accepts_can_be_served() -> None:
    assert set(KINDS) == set(TOPIC_KINDS)


async def test_a_partition_has_the_kind_of_its_topic() -> None:
    async with running() as node:
        await node.topic("orders")
        metadata = node.metadata.state_machine
        (topic,) = metadata.topics()
        partition = metadata.partition(topic.group_ids[0])
        assert partition is not None
        assert isinstance(kind_of(metadata, partition).new_state_machine(), LogPartition)
        with pytest.raises(LookupError):
            kind_of(Metadata(), partition)
