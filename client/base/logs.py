"""The SDK's logger, ``raftmq``: static event names with ``key=value`` data, never payloads or keys of records.

DEBUG: connections and retries. INFO: what a client is connected to, and leaders of the partitions it uses that moved. WARNING:
degraded and healing by itself. Nothing is logged per record or per batch. Without a handler of the program nothing is written
(Python would otherwise print warnings to stderr).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

EVENTS: Final[Mapping[str, str]] = {
    "producer_started": "A producer is ready",
    "producer_closed": "A producer was closed",
    "producer_stopped": "A defect of the SDK ended a producer; every call raises from now on. Please report it",
    "producer_fenced": "A newer producer of the same name took over: this one has stopped, and every call raises that error",
    "delivery_callback_failed": "A callback of the program raised; its traceback follows. Nothing else suffers from it",
    "producer_predecessor_awaited": "A broker could not be told that a producer's name has a new owner: starting waits until it must know",
    "producer_name_not_confirmed": "A named producer could not ask whether its name is still its own; it asks again",
    "consumer_started": "A consumer is ready",
    "client_stopped": "A defect of the SDK ended what keeps a client informed; every call raises from now on. Please report it",
    "connection_made": "A channel to a broker was opened",
    "connection_dropped": "A channel was closed: no broker is at that address any more",
    "data_connection_opened": "A data connection to a broker was opened, beside gRPC",
    "data_connection_unavailable": "A broker has no data port (`not_offered`, `UNSUPPORTED_VERSION`), or it cannot be used: appends and polls go over gRPC, and it is tried again later",
    "append_stream_opened": "A producer writes to a broker from now on",
    "append_stream_ended": "The stream ended; what was unanswered is repeated",
    "append_retried": "A batch was refused or lost, and is repeated",
    "poll_retried": "A poll failed and is repeated",
    "partition_unavailable": "A partition has failed several times in a row; it is tried on until the delivery timeout",
    "batch_given_up": "A batch was not delivered: its delivery raises the error",
    "leader_changed": "Another broker leads a partition that is used",
    "position_reset": "The position was out of range and went to where auto_offset_reset says",
    "group_joined": "A consumer is a member of its group",
    "group_partitions_assigned": "A consumer reads these partitions from now on",
    "group_partitions_revoked": "A consumer gave partitions up, in peace: another member, or nobody, reads them",
    "group_partitions_lost": "Partitions may be another member's already; what was read of them and not committed is read again",
    "group_membership_lost": "The coordinator ended a member's session, or it was removed; it joins again",
    "group_membership_refused": "The coordinator does not take this member: another process has its instance id, or its settings make no sense",
    "group_session_unheard": "No coordinator answered for a whole session: partitions may be another's, and are not read until one answers",
    "heartbeats_failing": "Heartbeats have failed several times in a row; they are tried on",
    "heartbeats_stopped": "A defect of the SDK ended a member's heartbeats; its session will end. Please report it",
    "poll_interval_exceeded": "The program did not ask for records within max_poll_interval_ms: the member left its group until it does",
    "event_loop_blocked": "Something keeps the event loop: nothing is fetched, handed out or committed meanwhile; heartbeats go on",
    "partition_open_failed": "A partition that was assigned cannot be opened yet; it is tried on",
    "auto_commit_failed": "Offsets were not committed automatically; the next attempt includes them",
    "commit_failed": "A commit that nobody waited for failed",
    "listener_failed": "A rebalance listener raised; the rebalance went on, and the next call that reads raises it",
    "leave_failed": "Nobody heard that a member left; its session ends by itself",
    "topology_watched": "A broker keeps the client informed",
    "topology_watch_ended": "It ended that; the client asks another",
    "topology_watch_failed": "A broker could not be asked; the client asks another",
    "address_of_another_cluster": "An address now belongs to another cluster: it is not used",
    "no_broker_reachable": "No broker has answered for a while; it is tried on",
    "worker_started": "A worker reads, and runs its handler",
    "worker_draining": "A worker takes nothing more and waits for its handlers",
    "worker_stopped": "A worker has ended; `handlers_running` had not when its time was over: their records come again",
    "transformer_started": "A transformer reads, and runs its handler",
    "transformer_draining": "A transformer begins nothing more and waits for the chunks at work",
    "transformer_stopped": "A transformer has ended; what it did not commit is done again by the next one, and written once",
    "transform_partition_begun": "A transformer goes on with a partition at `offset`; `is_resumed`: with the state that its last owner committed",
    "transform_partition_lost": "A transformer found that a partition is another member's by now, and left it",
    "transform_delayed": "A step of a transformer failed and is repeated",
    "transform_records_missed": "Records were deleted before a transformer handled them: it goes on at `next_offset`",
    "transform_name_lost": "The name under which a transformer writes belongs to a later owner of the partition, or was forgotten",
    "handler_failed": "A handler raised, or took too long; its traceback follows. Always said of the first of its kind, else at most every 5 s",
    "handler_failed_again": "The same of all others",
    "handler_asked_to_retry": "A handler raised Retry",
    "failure_callback_failed": "A worker's on_failure raised; its traceback follows. Nothing else suffers from it",
    "shutdown_hook_overdue": "A worker's on_shutdown did not end in time; the worker ended without it",
    "handler_loop_interrupted": "SystemExit or KeyboardInterrupt of a task or a hook left the event loop of async handlers, which goes on",
    "handler_overdue": "A handler in a thread takes longer than it may, and cannot be stopped: its record is held up until it returns",
    "record_dead_lettered": "A record was moved to the dead-letter topic after its last try",
    "revocation_overdue": "Handlers of revoked partitions did not end in time; their next owner repeats the records",
    "progress_not_committed": "A worker's commit failed and is repeated; what is not committed in the end is worked on again",
}
"""Every event of the SDK, and what it means. A test compares them with the calls in the code, both ways."""

log: Final = logging.getLogger("raftmq")
log.addHandler(logging.NullHandler())
_grpc_log: Final = logging.getLogger("grpc")
if _grpc_log.level == logging.NOTSET:  # the program's wish wins
    _grpc_log.setLevel(
        logging.INFO
    )  # at DEBUG it tells of each event loop it sees, between the lines of whoever looks for something


class LogThrottle:
    """Whether it is time to say again what lasts."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._said_at = float("-inf")

    def is_due(self) -> bool:
        """True at most once per interval."""
        now = time.monotonic()
        if now - self._said_at < self._interval_seconds:
            return False
        self._said_at = now
        return True
