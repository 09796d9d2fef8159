from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from raftmq.client.producer.append_request import PartitionBatches, serialize_append
from raftmq.proto import queue_pb2 as pb

uint64 = st.integers(0, 2**64 - 1)
uint32 = st.integers(0, 2**32 - 1)
batches = st.lists(st.binary(max_size=300), max_size=3)


@given(uint64, uint64, uint32, st.lists(st.builds(PartitionBatches, uint64, uint32, batches), max_size=3))
def test_the_bytes_equal_those_of_protobuf(correlation_id, revision, timeout_ms, partitions):
    message = pb.AppendRequest(
        correlation_id=correlation_id,
        metadata_revision=revision,
        timeout_ms=timeout_ms,
        partitions=[pb.PartitionAppend(topic_id=t, partition=p, batches=b) for t, p, b in partitions],
    )
    assert serialize_append(correlation_id, revision, timeout_ms, partitions) == message.SerializeToString()


def test_the_lengths_of_large_batches_are_encoded_correctly():
    frame = serialize_append(1, 2, 3, [PartitionBatches(4, 5, [bytes(3 << 20)])])
    assert pb.AppendRequest.FromString(frame).partitions[0].batches == [bytes(3 << 20)]
