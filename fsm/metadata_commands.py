"""The commands of the metadata group and their results: tagged msgspec structs, encoded as MessagePack.

New commands and fields have a feature level (`feature_levels`). New fields are appended with defaults, and a tag is
never reused. A command with a field that this version does not know is not readable: ignoring the field would produce a
different state than on the other brokers. Proposers validate. Apply checks again everything that may have changed
since, and answers with a result, never an error.
"""

from __future__ import annotations

import msgspec
from raftmq.fsm.topic_kinds import TOPIC_KINDS


class Command(msgspec.Struct, frozen=True, tag_field="t", omit_defaults=True, forbid_unknown_fields=True):
    """Base of all metadata commands."""


class InitializeCluster(Command, frozen=True, tag="init"):
    """Form the cluster. The bootstrapping node proposes it once, as the first command, and owns replica 1 of group 0."""

    cluster_id: str
    feature_level: int
    bootstrap_uuid: str = ""
    """The node that owns metadata replica 1. Empty: the first node that registers."""


class RegisterNode(Command, frozen=True, tag="node+"):
    """Register a node that joins, or that comes back with other addresses. The same `uuid` keeps its node id.

    A new uuid gets the wanted `node_id` if that is free (0: the next free one) and a new metadata replica id. Result:
    `NodeRegistered`, or `Rejected` with BROKER_ID_TAKEN (another uuid has the id, and `replaces_lost` is not set),
    BROKER_REMOVED (this uuid was removed or replaced, and stays refused), STALE_DIRECTORY (the directory does not descend
    from the boot that registered last), ADDRESS_TAKEN (by another node) or UNSUPPORTED_VERSION.
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
    """Set together with a node id that another uuid holds: that uuid's disk is lost. The uuid is refused permanently.
    Each of its replicas, also the metadata replica, is retired as lost and replaced by a new replica id on the same
    node id under the new uuid."""
    partitions_max: int = 0
    """Maximum number of partition replicas that the node accepts; 0 if it does not say."""
    boot: int = 0
    """The boot of the node's data directory, with the marks of its latest boots (`node_lineage`); 0 if it does not say.
    """
    lineage: bytes = b""


class RaiseFeatureLevel(Command, frozen=True, tag="level+"):
    """Raise the cluster's feature level, which permits the commands of that level. Nothing lowers it again.

    Result: `Done`, also when the cluster is at this level, or `Rejected` with FAILED_PRECONDITION below the cluster's level
    and UNSUPPORTED_VERSION above the level of a registered node.
    """

    level: int


class RemoveNode(Command, frozen=True, tag="node-"):
    """Remove a node permanently and refuse its uuid. Result: `Done` or `Rejected`.

    CONFLICT if the node still has a desired or retiring replica, or is a desired metadata voter. With `is_forced` its
    replicas are retired as lost instead, and the partitions lack a replica until `SetReplicas` gives them another.
    """

    node_id: int
    is_forced: bool = False


class SetNodeState(Command, frozen=True, tag="node-state"):
    """Set a node's state: "draining" before it is removed, and "active" to give it replicas again.

    A draining node gets no further replicas, and the controller moves those that it has. Result: `Done`, also when it is
    in this state, or `Rejected`: UNKNOWN_BROKER, INVALID_ARGUMENT for another state, CONFLICT if fewer active nodes would
    remain than a topic has replicas.
    """

    node_id: int
    state: str


class SetMetadataMembership(Command, frozen=True, tag="meta-members"):
    """Set the controller's desired voters of group 0 (replica ids). The leader reconciles towards them. Others are
    learners.

    `expected_revision` is the metadata revision at which the decision was made. CONFLICT if the voters or the metadata
    replicas changed after it.
    """

    voters: tuple[int, ...]
    expected_revision: int


class PartitionPlan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Name the nodes of a new partition's replicas by id. The first one is preferred as leader."""

    node_ids: tuple[int, ...]


class CreateTopic(Command, frozen=True, tag="topic+"):
    """Create a topic. Result: `TopicCreated`, or `Rejected` (TOPIC_ALREADY_EXISTS, unknown node in a plan).

    The command needs the feature level of its kind. Like an unknown field, an unknown kind makes it unreadable.
    """

    name: str
    kind: str
    """A name of `topic_kinds.TOPIC_KINDS`."""
    replication_factor: int
    config: dict[str, str]
    partitions: tuple[PartitionPlan, ...]

    def __post_init__(self) -> None:
        """Refuse a kind that this version does not know, also when a command is decoded."""
        if self.kind not in TOPIC_KINDS:
            raise ValueError(f"there is no topic kind {self.kind!r}")


class AddPartitions(Command, frozen=True, tag="partitions+"):
    """Append partitions. `expected_count` guards against two concurrent calls. Result: `TopicCreated` or `Rejected`."""

    topic_id: int
    expected_count: int
    partitions: tuple[PartitionPlan, ...]


class AlterTopicConfig(Command, frozen=True, tag="topic~"):
    """Set configuration keys, or remove those with value None. Result: `Done` or `Rejected`."""

    topic_id: int
    changes: dict[str, str | None]


class DeleteTopic(Command, frozen=True, tag="topic-"):
    """Delete a topic. Result: `Done`, or `Rejected` with UNKNOWN_TOPIC."""

    topic_id: int


class AllocateProducerIds(Command, frozen=True, tag="pid-block"):
    """Allocate a block of producer ids. Result: `ProducerIdBlock`."""

    count: int


class StampClaim(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Join an epoch of a name and agree on its stamp, as an `InitNamedProducer` with an epoch does.

    With `shared_bytes` the rest of a stamp is a set of bits. If so many first bytes of `stamp` and of the present stamp are equal, the bits of
    `stamp` are added, whatever `replaces` is.
    """

    name: str
    epoch: int
    stamp: bytes = b""
    replaces: bytes | None = None
    shared_bytes: int = 0


class InitNamedProducer(Command, frozen=True, tag="pid-name"):
    """Initialize a named producer that starts or restarts. Result: `ProducerInitialized` or `Rejected`.

    Without `epoch` the name's epoch rises by one and fences the predecessor. With `epoch`, the same epoch gets the same
    id again, a lower one is `Rejected` with PRODUCER_FENCED, and a higher one is accepted.

    The stamp belongs to the epoch. The command that begins an epoch writes it. Later commands replace it only if they
    name the present stamp (compare and swap). Processes that share a name use it to agree on values that must not
    differ between them.

    `then` is executed in the same step, but only if the first name's stamp is now the one of this command.
    """

    name: str
    epoch: int | None
    stamp: bytes = b""
    replaces: bytes | None = None
    then: StampClaim | None = None


class ForgetProducerNames(Command, frozen=True, tag="pid-names-"):
    """Remove names of producers, as their expiry does. Result: `Done`, or `Rejected` with INVALID_ARGUMENT.

    A name that is unknown, or that was used at a later time of the expiry clock than `used_until_ms`, is left alone.
    """

    names: tuple[str, ...]
    """At most `FORGOTTEN_NAMES_MAX`."""
    used_until_ms: int


class RemoveReplica(Command, frozen=True, tag="replica-"):
    """Remove a retiring replica that has left its group's applied configuration. Its files may then be deleted.

    For group 0 it removes a retiring metadata replica. Result: `Done`, or `Rejected` with CONFLICT if the replica is
    still desired.
    """

    group_id: int
    replica_id: int


class ReplaceReplica(Command, frozen=True, tag="replica!"):
    """Retire a replica that reported damage as lost, and give its node a new replica in its place.

    For group 0 it replaces a node's metadata replica, and a desired voter is replaced in place. Result: `Done`, also
    when the replica is no longer desired, or `Rejected`. The proposer checks that a healthy majority remains.
    """

    group_id: int
    replica_id: int


class SetReplicas(Command, frozen=True, tag="replicas="):
    """Set the desired replicas of a partition as node ids. Nodes without a replica get new replica ids.

    `expected_revision` is the metadata revision at which the decision was made. CONFLICT if the partition changed after
    it.
    """

    group_id: int
    node_ids: tuple[int, ...]
    expected_revision: int
    is_pinned: bool = False
    """Whether automatic balancing must leave the replicas there. Level 5."""


class RevertReplicas(Command, frozen=True, tag="replicas<"):
    """Give up a move: replicas that were to leave stay, and those that were to take their seats leave. Level 5.

    Lost replicas, and newcomers that replace none, are not changed. Result: `Done`, also when the partition does not move, or
    `Rejected`: UNKNOWN_PARTITION, or CONFLICT if the partition changed after `expected_revision`.
    """

    group_id: int
    expected_revision: int
    reason: str


class AdmitReplica(Command, frozen=True, tag="replica-votes"):
    """Record that a newcomer votes in its group. Result: `Done`, also when it is no newcomer, or `Rejected`."""

    group_id: int
    replica_id: int


class RecoverPartition(Command, frozen=True, tag="partition-recover"):
    """Replace a group that has lost its majority by a new group, whose only founder continues the data of one replica.

    The founder is on the node of the kept replica. The old group id is never used again, so every replica of the old group is
    retired. The other replicas of the new group follow by `SetReplicas`. Result: `Done`, also when the group was replaced
    from this replica before, or `Rejected`: UNKNOWN_PARTITION, CONFLICT if the partition changed after `expected_revision`,
    or INVALID_ARGUMENT if the group has no such replica. The proposer checks that no majority is left.
    """

    group_id: int
    replica_id: int
    """The replica to keep."""
    term: int
    """A term that no leader of the old group has reached, as far as is known."""
    log_end_offset: int
    """End of the kept replica's log."""
    known_end_offset: int
    """The highest known end of a log that may have acknowledged records after the kept one's end."""
    expected_revision: int


class SetReplicationFactor(Command, frozen=True, tag="factor="):
    """Set the number of replicas that a topic wants. The controller adds and removes replicas afterwards.

    Result: `Done` or `Rejected`: UNKNOWN_TOPIC, INVALID_REPLICATION_FACTOR (below 1, above the limit, or above the number of
    active nodes).
    """

    topic_id: int
    replication_factor: int


class SetBalancing(Command, frozen=True, tag="balancing="):
    """Change how the controller moves replicas. A field that is None keeps its value.

    Result: `Done`, or `Rejected` with INVALID_ARGUMENT for a value outside its bounds.
    """

    auto_balance: bool | None = None
    """Whether replicas and leaderships are spread and evened without an order."""
    moves_max: int | None = None
    """Partitions that move simultaneously."""
    rebalance: str | None = None
    """The wish for one rebalancing: a value of `metadata_balancing.REBALANCES`. The controller withdraws it when nothing is left to do."""
    bytes_per_second: int | None = None
    """Bytes that each node may send to new replicas of planned moves; 0 is unlimited. Level 5."""


class AlterConfig(Command, frozen=True, tag="config~"):
    """Set run-time settings of one broker or of all, or remove those with value None. Level 7.

    Result: `Done`, also when nothing changes, or `Rejected` with UNKNOWN_BROKER.
    """

    node_id: int
    """0: all brokers."""
    changes: dict[str, str | None]


class JoinConsumerGroup(Command, frozen=True, tag="member+"):
    """Add a member, or change its subscription or attributes. The same command again gives the same result,
    `MemberJoined`.

    A new member with the `instance_id` of another member replaces it immediately: it gets the same partitions under new
    owner epochs. Rejected: INVALID_ARGUMENT, TOO_MANY_MEMBERS, or UNKNOWN_MEMBER if `must_exist` is set and the member
    does not exist.
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
    """The command changes a member and must not add one: a member whose session ended in the meantime must not come
    back by it."""


class LeaveConsumerGroup(Command, frozen=True, tag="members-"):
    """Remove members that leave or whose sessions ended, and free their partitions.

    Result: `Done`, or `Rejected` with UNKNOWN_MEMBER if the group has none of them.
    """

    group: str
    member_ids: tuple[str, ...]


class MemberTarget(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The target of one member."""

    member_id: str
    partitions: tuple[tuple[int, tuple[int, ...]], ...]
    """(topic id, partition numbers), both ascending."""


class SetTargetAssignment(Command, frozen=True, tag="target"):
    """Set an assignment computed for the group as of `expected_epoch`. Members that are not named keep their targets.

    Partitions without an owner go to their new owners immediately, others when they are released. Result: `Done`, or
    `Rejected` with CONFLICT if the group or the topics changed in the meantime, or INVALID_ARGUMENT if a partition
    would have two owners.
    """

    group: str
    expected_epoch: int
    assignor: str
    topics: tuple[tuple[int, int], ...]
    """(topic id, partition count) of the divided topics, ascending."""
    changes: tuple[MemberTarget, ...]


class ReleasePartitions(Command, frozen=True, tag="release"):
    """Release partitions (topic id, number) that a member no longer holds. It knows its assignment of `member_epoch`.

    Only partitions outside the member's target are released. Result: `Done`, or `Rejected` with UNKNOWN_MEMBER or
    STALE_EPOCH.
    """

    group: str
    member_id: str
    member_epoch: int
    partitions: tuple[tuple[int, int], ...]


class RegrantPartitions(Command, frozen=True, tag="regrant"):
    """Grant partitions (topic id, number) again to their present owners, under a new owner epoch, because the old one
    was fenced.

    Result: `Done`, or `Rejected` with UNKNOWN_GROUP.
    """

    group: str
    partitions: tuple[tuple[int, int], ...]


class TakeGroupEpoch(Command, frozen=True, tag="group-epoch"):
    """Reserve an epoch above every owner epoch assigned so far in the group: `Done.revision`. The group need not exist.

    `Rejected` with GROUP_NOT_EMPTY if `must_be_empty` is set and the group has members.
    """

    group: str
    must_be_empty: bool


class DeleteConsumerGroup(Command, frozen=True, tag="group-"):
    """Delete a group without members. Result: `Done`, or `Rejected` with UNKNOWN_GROUP or GROUP_NOT_EMPTY.

    If `emptied_before_ms` is above 0, the last member must have left before that time (append time). Otherwise
    CONFLICT.
    """

    group: str
    emptied_before_ms: int = 0


MetadataCommand = (
    InitializeCluster
    | RaiseFeatureLevel
    | RegisterNode
    | RemoveNode
    | SetNodeState
    | SetMetadataMembership
    | CreateTopic
    | AddPartitions
    | AlterTopicConfig
    | DeleteTopic
    | AllocateProducerIds
    | InitNamedProducer
    | ForgetProducerNames
    | RemoveReplica
    | ReplaceReplica
    | SetReplicas
    | RevertReplicas
    | AdmitReplica
    | RecoverPartition
    | SetReplicationFactor
    | SetBalancing
    | AlterConfig
    | JoinConsumerGroup
    | LeaveConsumerGroup
    | SetTargetAssignment
    | ReleasePartitions
    | RegrantPartitions
    | TakeGroupEpoch
    | DeleteConsumerGroup
)


class Done(msgspec.Struct, frozen=True):
    """The command was applied. `revision` is the metadata revision that includes it (the entry's log index)."""

    revision: int


class Rejected(msgspec.Struct, frozen=True):
    """The command was definitely not applied. `code` is an `ErrorCode` number of the client protocol."""

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
    """Result of AllocateProducerIds. The ids first .. first+count-1 belong to the requester."""

    revision: int
    first: int
    count: int


class ProducerInitialized(msgspec.Struct, frozen=True):
    """Result of InitNamedProducer."""

    revision: int
    producer_id: int
    epoch: int
    stamp: bytes = b""
    """The present stamp of the epoch."""
    then: ProducerInitialized | Rejected | None = None
    """Result of `InitNamedProducer.then`. None: there is none, or it was not executed."""


class MemberJoined(msgspec.Struct, frozen=True):
    """Result of JoinConsumerGroup."""

    revision: int
    member_epoch: int


MetadataResult = Done | Rejected | NodeRegistered | TopicCreated | ProducerIdBlock | ProducerInitialized | MemberJoined

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_DECODER: msgspec.msgpack.Decoder[MetadataCommand] = msgspec.msgpack.Decoder(MetadataCommand)


def encode_command(command: MetadataCommand) -> bytes:
    """Encode the payload of a COMMAND entry of the metadata group."""
    return _ENCODER.encode(command)


def decode_command(payload: bytes) -> MetadataCommand | None:
    """Decode the command in a payload, or return None if this version cannot read one."""
    try:
        return _DECODER.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
