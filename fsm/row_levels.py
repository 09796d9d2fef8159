"""The feature level of each field that was added to a row after the first level. Until the cluster has the level the field has its default.

The simulator checks it in every state machine, and `tests/formats/` has the fields and defaults of every row.
"""

from __future__ import annotations

from typing import Final

from raftmq.fsm.field_levels import FieldLevels
from raftmq.fsm.metadata_tables import ClusterRow
from raftmq.fsm.metadata_views import PartitionView, ReplicaView, TopicView

ROW_LEVELS: Final[FieldLevels] = {
    ClusterRow: {"auto_balance": 3, "moves_max": 3, "rebalance": 3, "bytes_per_second": 5},
    TopicView: {"schedule_partitions": 2},
    ReplicaView: {"is_newcomer": 3},
    PartitionView: {"given_up": 5, "is_pinned": 5},
}
