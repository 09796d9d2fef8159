"""Name the `ErrorCode` numbers of the client protocol that state machines answer with.

They are plain ints because a state machine must not import generated protobuf modules. A test compares them with
queue.proto.
"""

from __future__ import annotations

from typing import Final

INVALID_ARGUMENT: Final = 1
UNKNOWN_TOPIC: Final = 2
UNKNOWN_PARTITION: Final = 3
TOPIC_ALREADY_EXISTS: Final = 4
INVALID_TOPIC_NAME: Final = 5
INVALID_CONFIG: Final = 6
INVALID_REPLICATION_FACTOR: Final = 7
INVALID_PARTITIONS: Final = 8
UNSUPPORTED_VERSION: Final = 12
TOO_MANY_PARTITIONS: Final = 16
OFFSET_OUT_OF_RANGE: Final = 20
THROTTLED: Final = 33
NO_LEADER: Final = 36
NOT_FORMED: Final = 39
CLUSTER_ALREADY_FORMED: Final = 40
PRODUCER_FENCED: Final = 52
TOO_MANY_NAMES: Final = 55
FENCED: Final = 60
UNKNOWN_MEMBER: Final = 61
STALE_EPOCH: Final = 62
UNKNOWN_GROUP: Final = 63
GROUP_NOT_EMPTY: Final = 64
TOO_MANY_MEMBERS: Final = 65
CONFLICT: Final = 70
UNKNOWN_BROKER: Final = 71
BROKER_ID_TAKEN: Final = 72
BROKER_REMOVED: Final = 73
STALE_DIRECTORY: Final = 75
ADDRESS_TAKEN: Final = 76
FAILED_PRECONDITION: Final = 77
