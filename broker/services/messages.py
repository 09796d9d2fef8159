"""Convert the metadata's views to protocol messages."""

from __future__ import annotations

from raftmq.broker.services.host import ServiceHost
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_views import NodeView, PartitionView, TopicView
from raftmq.proto import queue_pb2 as pb
from raftmq.types import NO_NODE, GroupId


def node_message(node: NodeView) -> pb.Broker:
    """Return the message of a node."""
    return pb.Broker(
        broker_id=node.node_id,
        address=node.client_address,
        host=node.host,
        rack=node.rack,
        version=node.version,
        state=node.state,
        http_address=node.http_address,
        peer_address=node.peer_address,
    )


def topic_message(metadata: Metadata, topic: TopicView) -> pb.Topic:
    """Return the message of a topic with its partitions and their desired replicas."""
    message = pb.Topic(
        topic_id=topic.topic_id,
        name=topic.name,
        kind=topic.kind,
        replication_factor=topic.replication_factor,
        config=topic.config,
        schedule_partitions=topic.schedule_partitions,
    )
    message.partitions.extend(
        partition_message(number, group_id, metadata.partition(group_id))
        for number, group_id in enumerate(topic.group_ids)
    )
    return message


def partition_message(number: int, group_id: int, partition: PartitionView | None) -> pb.Partition:
    """Return the message of a partition of a topic."""
    return pb.Partition(
        partition=number,
        group_id=group_id,
        replica_brokers=[replica.node_id for replica in partition.replicas] if partition is not None else [],
        is_pinned=partition is not None and partition.is_pinned,
    )


def leader_message(host: ServiceHost, group_id: int) -> pb.PartitionLeader:
    """Return the known leader of a partition's group, or node 0 if there is none."""
    term, node_id = host.leadership.get(GroupId(group_id))
    if not host.is_led(GroupId(group_id)):
        node_id = NO_NODE
    return pb.PartitionLeader(group_id=group_id, broker_id=node_id, leader_epoch=term)
