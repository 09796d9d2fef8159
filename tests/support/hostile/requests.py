"""Provide valid requests of the client protocol, from which fuzzing derives hostile ones."""

from __future__ import annotations

from google.protobuf.message import Message
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb

from tests.support.hostile.samples import append_request, opaque_batch, poll_request

RPC_NAMES = {
    "append": "/raftmq.v1.Log/Append",
    "poll": "/raftmq.v1.Log/Poll",
    "list_offsets": "/raftmq.v1.Log/ListOffsets",
    "delete_records": "/raftmq.v1.Log/DeleteRecords",
    "init_producer": "/raftmq.v1.Log/InitProducer",
    "fence_producer": "/raftmq.v1.Log/FenceProducer",
}


def queue_requests(topic_id: int) -> dict[str, list[Message]]:
    """Return the requests of the log service by method."""
    several = pb.AppendRequest()
    several.CopyFrom(append_request(topic_id, opaque_batch(3), opaque_batch(2, producer=5)))
    several.partitions.append(append_request(topic_id, opaque_batch(1), partition=1).partitions[0])
    return {
        "append": [
            append_request(topic_id, opaque_batch(2, producer=0)),
            append_request(topic_id, opaque_batch(2, producer=6, epoch=1, sequence=0)),
            several,
        ],
        "poll": [poll_request(topic_id, 0), poll_request(topic_id, 3)],
        "list_offsets": [
            pb.ListOffsetsRequest(
                partitions=[
                    pb.PartitionTime(topic_id=topic_id, partition=number, time_ms=time_ms)
                    for number, time_ms in ((0, -1), (1, -2), (0, 5))
                ]
            )
        ],
        "delete_records": [
            pb.DeleteRecordsRequest(
                timeout_ms=20, partitions=[pb.PartitionTrim(topic_id=topic_id, partition=0, before_offset=1)]
            )
        ],
        "init_producer": [pb.InitProducerRequest(), pb.InitProducerRequest(name="spark", epoch=3)],
        "fence_producer": [pb.FenceProducerRequest(producer_id=(1 << 63) | 1, epoch=3, metadata_revision=1)],
    }


def stream_requests(topic_id: int) -> list[Message]:
    """Return requests of a stream of messages. The first ones open it."""
    opening = pb.QueueStreamOpen(topic_id=topic_id, lease_ms=1000, tenants=["acme.eu", "other"])
    settled = pb.PartitionAck(
        topic_id=topic_id, operations=[pb.ACCEPT, pb.RENEW], first_sequences=[0, 5], counts=[3, 2], lease_numbers=[1, 1],
        detail_numbers=[0, 1], details=[pb.AckDetail(delay_ms=7, priority=1, error="e", lease_ms=9, progress="p")],
    )  # fmt: skip
    chained = pb.PartitionAck(
        topic_id=topic_id, operations=[pb.ACCEPT], first_sequences=[1], counts=[1], lease_numbers=[1], put=bytes(200),
        put_counts=[1],
    )  # fmt: skip
    return [
        pb.QueueStreamRequest(open=opening, messages_limit=5, bytes_limit=1 << 20),
        pb.QueueStreamRequest(open=opening, acks=[settled, chained], correlation_id=1),
        pb.QueueStreamRequest(messages_limit=9, bytes_limit=1 << 62, acks=[settled], correlation_id=2),
        pb.QueueStreamRequest(goodbye=True),
    ]


def admin_requests() -> dict[str, list[Message]]:
    """Return the requests of the admin services by method. They change the cluster, so they are only for nodes in memory."""
    return {
        "create_topic": [
            pb.CreateTopicRequest(name="fresh", partitions=2, config={"max.batch.bytes": "2048"}, timeout_ms=10)
        ],
        "alter_topic": [pb.AlterTopicRequest(name="flights", set={"retention.ms": "1000"}, unset=["retention.bytes"])],
        "add_partitions": [pb.AddPartitionsRequest(name="flights", total=3, timeout_ms=10)],
        "describe_topic": [pb.DescribeTopicRequest(name="flights", with_states=True)],
        "list_topics": [pb.ListTopicsRequest()],
        "describe_cluster": [pb.DescribeClusterRequest(with_health=True)],
        "describe_node": [peer_pb.DescribeBrokerRequest()],
        "describe_partitions": [
            peer_pb.DescribePartitionsRequest(partitions=[pb.PartitionId(topic_id=1, partition=n) for n in (0, 7)])
        ],
        "register_node": [
            peer_pb.RegisterBrokerRequest(
                uuid="uuid-2", broker_id=2, client_address="h:1", peer_address="h:2", http_address="h:3", host="h", rack="r",
                version="1", feature_level_max=1, cluster_id="cluster-of-tests",
            )
        ],
        "remove_node": [pb.RemoveBrokerRequest(broker_id=2, force=True, timeout_ms=10), pb.RemoveBrokerRequest(broker_id=1)],
        "raise_feature_level": [pb.RaiseFeatureLevelRequest(level=99), pb.RaiseFeatureLevelRequest()],
        "drain_node": [pb.DrainBrokerRequest(broker_id=1, dry_run=True), pb.DrainBrokerRequest(broker_id=9, is_ended=True)],
        "rebalance": [pb.RebalanceRequest(dry_run=True, leaders_only=True), pb.RebalanceRequest()],
        "forget_names": [pb.ForgetProducerNamesRequest(prefix="spark-", unused_ms=5, dry_run=True, names_max=3)],
        "set_balancing": [pb.SetBalancingRequest(auto_balance=False, moves_max=3, bytes_per_second=7)],
        "alter_config": [
            pb.AlterConfigRequest(broker_id=1, set={"log_level": "debug"}, unset=["scrub_bytes_per_second"]),
            pb.AlterConfigRequest(set={"retention.ms": "1"}),
        ],
        "list_config": [pb.ListConfigRequest()],
        "describe_config": [pb.DescribeConfigRequest(broker_id=1), pb.DescribeConfigRequest(broker_id=9)],
        "describe_moves": [pb.DescribeMovesRequest()],
        "move_partition": [pb.MovePartitionRequest(topic="flights", partition=0, broker_ids=[1], dry_run=True)],
        "set_replication_factor": [pb.SetReplicationFactorRequest(topic="flights", replication_factor=1)],
        "transfer_leader": [pb.TransferLeaderRequest(topic="flights", partition=0, broker_id=1, timeout_ms=20)],
        "list_lost_partitions": [pb.ListLostPartitionsRequest(topic="flights"), pb.ListLostPartitionsRequest()],
        "recover_partition": [
            pb.RecoverPartitionRequest(topic="flights", partition=0, keep_broker_id=1, unsafe=True, dry_run=True, group_id=1)
        ],
        "describe_replicas": [peer_pb.DescribeReplicasRequest(group_ids=[1, 7])],
        "report_damage": [
            peer_pb.ReportDamageRequest(
                broker_id=1, uuid="uuid-1", replicas=[peer_pb.ReplicaReport(group_id=1, replica_id=2, reason="crc")]
            )
        ],
        "report_replicas": [
            peer_pb.ReportReplicasRequest(
                broker_id=1, uuid="uuid-1", damaged=[peer_pb.ReplicaReport(group_id=1, replica_id=99)],
                left=[peer_pb.ReplicaReport(group_id=1, replica_id=98)],
            )
        ],
    }  # fmt: skip
