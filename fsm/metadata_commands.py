"""The metadata group's commands and their results: msgspec structs, tagged, encoded as MessagePack.

New commands and fields have a feature level (`feature_levels`); new fields are appended with defaults; a tag is never
reused. A command with a field that this version does not know is not readable: to ignore the field would make another state
of it than the other brokers have. Proposers validate; apply decides again what may have
changed meanwhile and answers with a result, never an error.
"""

from __future__ import annotations

import msgspec


class Command(msgspec.Struct, frozen=True, tag_field="t", omit_defaults=True, forbid_unknown_fields=True):
    """Base of all metadata commands."""


class InitializeCluster(Command, frozen=True, tag="init"):
    """First command of a cluster's life, proposed once by the bootstrapping node. Replica 1 of group 0 is its own."""

    cluster_id: str
    feature_level: int
    bootstrap_uuid: str = ""
    """The node that owns metadata replica 1. Empty: whoever registers first."""


class RegisterNode(Command, frozen=True, tag="node+"):
    """A node joins, or comes back with other addresses. `uuid` is its identity; the same uuid keeps its node id.

    A new uuid gets the wanted `node_id` if that is free (0: the next free one) and a new metadata replica id.
    Result: `NodeRegistered`, or `Rejected` (NODE_ID_TAKEN by another uuid and not `replaces_lost`; NODE_REMOVED: this
    uuid was removed or replaced, and stays refused; STALE_DIRECTORY: the directory does not descend from the boot that
    registered last; ADDRESS_TAKEN by another node; UNSUPPORTED_VERSION).
    """

    uuid: str
    node_id: int
    client_address: str
    peer_address: str
    http_address: str
    host: str
    rack: str
    version: str
    feature_level_max: int
    replaces_lost: bool = False
    """With a node id that another uuid holds: that uuid's disk is lost. It is refused for ever, and every replica on it,
    the metadata one too, is retired as lost and replaced by a new replica id on the same node id under the new uuid."""
    partitions_max: int = 0
    """Partition replicas that the node takes; 0: it does not say."""
    boot: int = 0
    """The boot of the node's data directory, with the marks of its latest boots (`node_lineage`); 0: it does not say."""
    lineage: bytes = b""


class RemoveNode(Command, frozen=True, tag="node-"):
    """A node leaves for good: its uuid is refused for ever. Result `Done` or `Rejected`.

    CONFLICT if it still has a replica, desired or retiring, or is a desired metadata voter; unless `is_forced`: then all
    of them are retired as lost, and the partitions stay short of a replica until `SetReplicas` gives them another.
    """

    node_id: int
    is_forced: bool = False


class SetMetadataMembership(Command, frozen=True, tag="meta-members"):
    """The controller's desired voters of group 0 (replica ids); the leader reconciles towards it. Others are learners.

    `expected_revision`: the metadata revision the decision was made at; CONFLICT if the voters or the metadata replicas
    changed after it.
    """

    voters: tuple[int, ...]
    expected_revision: int


class PartitionPlan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a new partition's replicas go: node ids, the first one preferred as leader."""

    node_ids: tuple[int, ...]


class CreateTopic(Command, frozen=True, tag="topic+"):
    """Result: `TopicCreated` or `Rejected` (TOPIC_ALREADY_EXISTS, unknown node in a plan)."""

    name: str
    kind: str
    """"log" or, later, "queue"."""
    replication_factor: int
    config: dict[str, str]
    partitions: tuple[PartitionPlan, ...]


class AddPartitions(Command, frozen=True, tag="partitions+"):
    """Appends partitions; `expected_count` guards against two concurrent calls. Result `TopicCreated` or `Rejected`."""

    topic_id: int
    expected_count: int
    partitions: tuple[PartitionPlan, ...]


class AlterTopicConfig(Command, frozen=True, tag="topic~"):
    """Sets (or with None removes) configuration keys. Result `Done` or `Rejected`."""

    topic_id: int
    changes: dict[str, str | None]


class DeleteTopic(Command, frozen=True, tag="topic-"):
    """Result `Done` or `Rejected` (UNKNOWN_TOPIC)."""

    topic_id: int


class AllocateProducerIds(Command, frozen=True, tag="pid-block"):
    """Result `ProducerIdBlock`."""

    count: int


class InitNamedProducer(Command, frozen=True, tag="pid-name"):
    """A producer with a name starts, or starts again.

    Without `epoch` the name's epoch rises by one and fences its predecessor. With one: the same epoch gets the same id
    again, a lower one is `Rejected` PRODUCER_FENCED, a higher one is taken. Result `ProducerInitialized`.

    The stamp belongs to the epoch: who begins an epoch writes it; after that it is replaced only by who names what it is
    (compare and swap). Those who share a name agree through it on what must not differ between them.
    """

    name: str
    epoch: int | None
    stamp: bytes = b""
    replaces: bytes | None = None


class RemoveReplica(Command, frozen=True, tag="replica-"):
    """A retiring replica that is gone from its group's applied configuration is forgotten; its files may then be deleted.

    Group 0: the same for a retiring metadata replica. Result `Done` or `Rejected` (CONFLICT: it is still desired).
    """

    group_id: int
    replica_id: int


class ReplaceReplica(Command, frozen=True, tag="replica!"):
    """A replica is damaged and says so: it is retired as lost, and its node gets a new one in its place.

    Group 0: the same for a node's metadata replica; a desired voter is replaced in place. Result `Done`, also when the
    replica is not desired any more, or `Rejected`. Whether a healthy majority remains is the proposer's to judge.
    """

    group_id: int
    replica_id: int


class SetReplicas(Command, frozen=True, tag="replicas="):
    """Desired replicas of a partition, as node ids; nodes that have none yet get new replica ids.

    `expected_revision`: the metadata revision the decision was made at; CONFLICT if the partition changed after it.
    """

    group_id: int
    node_ids: tuple[int, ...]
    expected_revision: int


class JoinConsumerGroup(Command, frozen=True, tag="member+"):
    """A member joins, or changes what it said of itself. Result `MemberJoined`, the same one again for the same command.

    A new member whose `instance_id` another one has takes its place at once: the same partitions under new owner epochs.
    Rejected: INVALID_ARGUMENT, TOO_MANY_MEMBERS, and UNKNOWN_MEMBER if it `must_exist` and does not.
    """

    group: str
    member_id: str
    instance_id: str
    client_id: str
    rack: str
    topics: tuple[str, ...]
    pattern: str
    assignor: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    must_exist: bool = False
    """It is a change, not a joining: a member whose session ended meanwhile must not come back by it."""


class LeaveConsumerGroup(Command, frozen=True, tag="members-"):
    """Members leave, or their sessions ended: what they had is free. Result `Done`, or `Rejected` UNKNOWN_MEMBER if the
    group has none of them.
    """

    group: str
    member_ids: tuple[str, ...]


class MemberTarget(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What one member shall have."""

    member_id: str
    partitions: tuple[tuple[int, tuple[int, ...]], ...]
    """(topic id, partition numbers), both ascending."""


class SetTargetAssignment(Command, frozen=True, tag="target"):
    """An assignment computed for the group as it was at `expected_epoch`; members not named keep their targets.

    Partitions that nobody holds go to their new owners at once, others when they are released. Result `Done`, or `Rejected`:
    CONFLICT if the group or the topics changed meanwhile, INVALID_ARGUMENT if a partition would have two owners.
    """

    group: str
    expected_epoch: int
    assignor: str
    topics: tuple[tuple[int, int], ...]
    """(topic id, partition count) of what was divided, ascending."""
    changes: tuple[MemberTarget, ...]


class ReleasePartitions(Command, frozen=True, tag="release"):
    """A member that knows its assignment of `member_epoch` does not hold these partitions (topic id, number) any more.

    Only what it shall not have is released. Result `Done`, or `Rejected`: UNKNOWN_MEMBER, STALE_EPOCH.
    """

    group: str
    member_id: str
    member_epoch: int
    partitions: tuple[tuple[int, int], ...]


class RegrantPartitions(Command, frozen=True, tag="regrant"):
    """Whoever has these partitions (topic id, number) gets them anew, under a new owner epoch: the old one was fenced.

    Result `Done`, or `Rejected` UNKNOWN_GROUP.
    """

    group: str
    partitions: tuple[tuple[int, int], ...]


class TakeGroupEpoch(Command, frozen=True, tag="group-epoch"):
    """An epoch above every owner epoch given so far in the group: `Done.revision`. The group need not exist.

    `Rejected` GROUP_NOT_EMPTY if it `must_be_empty` and is not.
    """

    group: str
    must_be_empty: bool


class DeleteConsumerGroup(Command, frozen=True, tag="group-"):
    """Forgets a group without members. Result `Done`, or `Rejected`: UNKNOWN_GROUP, GROUP_NOT_EMPTY.

    With `emptied_before_ms` above 0 only if its last member left before then (append time), else CONFLICT.
    """

    group: str
    emptied_before_ms: int = 0


MetadataCommand = (
    InitializeCluster
    | RegisterNode
    | RemoveNode
    | SetMetadataMembership
    | CreateTopic
    | AddPartitions
    | AlterTopicConfig
    | DeleteTopic
    | AllocateProducerIds
    | InitNamedProducer
    | RemoveReplica
    | ReplaceReplica
    | SetReplicas
    | JoinConsumerGroup
    | LeaveConsumerGroup
    | SetTargetAssignment
    | ReleasePartitions
    | RegrantPartitions
    | TakeGroupEpoch
    | DeleteConsumerGroup
)


class Done(msgspec.Struct, frozen=True):
    """Applied. `revision` is the metadata revision that includes it (the entry's log index)."""

    revision: int


class Rejected(msgspec.Struct, frozen=True):
    """Definitely not applied. `code` is an `ErrorCode` number of the client protocol."""

    code: int
    message: str


class NodeRegistered(msgspec.Struct, frozen=True):
    """Result of RegisterNode."""

    revision: int
    node_id: int
    metadata_replica_id: int


class TopicCreated(msgspec.Struct, frozen=True):
    """Result of CreateTopic and AddPartitions."""

    revision: int
    topic_id: int


class ProducerIdBlock(msgspec.Struct, frozen=True):
    """Ids first .. first+count-1 belong to the asker."""

    revision: int
    first: int
    count: int


class ProducerInitialized(msgspec.Struct, frozen=True):
    """Result of InitNamedProducer."""

    revision: int
    producer_id: int
    epoch: int
    stamp: bytes = b""
    """The epoch's stamp as it is now."""


class MemberJoined(msgspec.Struct, frozen=True):
    """Result of JoinConsumerGroup."""

    revision: int
    member_epoch: int


MetadataResult = Done | Rejected | NodeRegistered | TopicCreated | ProducerIdBlock | ProducerInitialized | MemberJoined

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_DECODER: msgspec.msgpack.Decoder[MetadataCommand] = msgspec.msgpack.Decoder(MetadataCommand)


def encode_command(command: MetadataCommand) -> bytes:
    """The payload of a COMMAND entry of the metadata group."""
    return _ENCODER.encode(command)


def decode_command(payload: bytes) -> MetadataCommand | None:
    """The command in a payload, or None if there is none that this version can read."""
    try:
        return _DECODER.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
