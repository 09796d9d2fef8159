"""The SDK's logger, ``raftmq``: static event names with ``key=value`` data, never payloads or keys of records.

DEBUG: connections and retries. INFO: connections of a client, and leader changes of partitions that it uses. WARNING: degraded states that
heal by themselves. Nothing is logged per record or per batch. Without a handler of the program, nothing is written (by default Python would
print warnings to stderr).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

EVENTS: Final[Mapping[str, str]] = {
    "producer_started": "A producer is ready",
    "producer_closed": "A producer was closed",
    "producer_stopped": "A defect of the SDK ended a producer. From now on every call raises an error. Please report it",
    "producer_fenced": "A newer producer of the same name took over. This one has stopped, and every call raises that error",
    "delivery_callback_failed": "A callback of the program raised the exception that follows. It has no other effect",
    "sync_loop_interrupted": "SystemExit or KeyboardInterrupt escaped from code of the program (a callback, a serializer) on the event loop of `raftmq.sync`. The loop continues",
    "tracing_failed": "OpenTelemetry, or an exporter of the program, raised the exception that follows. Records are not affected, and later exceptions are not logged",
    "producer_predecessor_awaited": "A broker could not be told that a producer name has a new owner: the start waits until it must know",
    "producer_name_not_confirmed": "A named producer could not confirm that it still owns its name. It tries again later",
    "consumer_started": "A consumer is ready",
    "client_stopped": "A defect of the SDK stopped a client's updates of the topology. From now on every call raises an error. Please report it",
    "connection_made": "A channel to a broker was opened",
    "connection_dropped": "A channel was closed, because no broker has that address any more",
    "data_connection_opened": "A data connection to a broker was opened, beside gRPC",
    "data_connection_unavailable": "A broker has no data port (`not_offered`, `UNSUPPORTED_VERSION`), or its data port cannot be used: appends and polls use gRPC, and the data port is tried again later",
    "append_stream_opened": "A producer opened a stream to a broker",
    "append_stream_ended": "A producer's stream ended. Unanswered requests are repeated",
    "queue_started": "A queue is ready",
    "queue_closed": "A queue was closed",
    "receiving_stopped": "A defect of the SDK stopped the delivery of messages to calls of `Queue` with the same lease and tenants. They raise an error, and the next one tries again. Please report it",
    "queue_stopped": "A defect of the SDK stopped a queue. Every call raises an error. Please report it",
    "queue_stream_opened": "A queue opened a stream to a broker",
    "queue_stream_ended": "A queue's stream ended. It is opened again, and unanswered settlements are repeated",
    "messages_not_given_back": "Messages of a partition that the client did not know yet come again only after their leases",
    "lease_refused": "A broker could not lease messages of a partition. It tries again by itself, or another broker leads",
    "lease_renewal_failed": "A broker did not answer to renewals of leases. They are repeated soon",
    "lease_lost": "A lease ended before its message was settled. The message is delivered again",
    "session_not_opened": "A partition did not open a session for settlements. It is asked again",
    "settlements_repeated": "A request with settlements was refused or lost, and is repeated under its number",
    "settlements_abandoned": "A queue was closed before all settlements were answered. Messages that are not settled are delivered again",
    "message_block_damaged": "Received messages were damaged on the way. They are delivered again when their leases end",
    "message_damaged": "The body of a message is damaged. It was rejected with this reason",
    "message_rejected": "The value of a message could not be read. It was rejected with this reason",
    "message_not_settled": "A worker could not settle a message, for example because its lease had ended. It may be delivered again",
    "append_retried": "A batch was refused or lost, and is repeated",
    "poll_retried": "A poll failed and is repeated",
    "partition_unavailable": "A partition has failed several times in a row. Retries continue until the delivery timeout",
    "batch_given_up": "A batch was not delivered. Its delivery raises the error",
    "leader_changed": "A partition in use has a new leader",
    "position_reset": "A position was out of range and was reset as auto_offset_reset says",
    "topic_created_again": "A topic was deleted and created again. The consumer continues in the new one, at its first record",
    "group_joined": "A consumer is a member of its group",
    "group_partitions_assigned": "A consumer starts to read these partitions",
    "group_partitions_revoked": "A consumer released these partitions in order. Another member may read them now",
    "group_partitions_lost": "Partitions may already belong to another member. Records that were read and not committed are read again",
    "group_joined_again": "A partition refused a member although the group assigned it, as after an interrupted reset of offsets. The member joined again",
    "group_membership_lost": "The coordinator ended a member's session, or removed the member. It joins again",
    "group_membership_refused": "The coordinator refuses a member: another process has its instance id, or its settings are invalid",
    "group_session_unheard": "No coordinator answered for a whole session. Another member may own the partitions, so they are not read until one answers",
    "heartbeats_failing": "Heartbeats have failed several times in a row. Retries continue",
    "heartbeats_stopped": "A defect of the SDK ended a member's heartbeats. Its session will expire. Please report it",
    "poll_interval_exceeded": "The program did not ask for records within max_poll_interval_ms. The member left its group until it asks again",
    "event_loop_blocked": "Code at `place` blocks the event loop: nothing is fetched, returned or committed. Heartbeats continue",
    "partition_open_failed": "An assigned partition cannot be opened yet. Retries continue",
    "auto_commit_failed": "An automatic commit failed. The next one includes the same offsets",
    "commit_failed": "A commit that nobody awaited failed",
    "listener_failed": "A rebalance listener raised an exception. The rebalance continues, and the next call that reads raises it",
    "leave_failed": "No broker could be told that a member left. Its session will expire",
    "topology_watched": "A broker sends topology updates to the client",
    "topology_watch_ended": "A broker stopped sending topology updates. The client asks another one",
    "topology_watch_failed": "A broker could not be asked for topology updates. The client asks another one",
    "address_of_another_cluster": "An address now belongs to another cluster and is not used",
    "no_broker_reachable": "No broker has answered for a while. Retries continue",
    "worker_started": "A worker reads records and runs its handler",
    "work_begun_again": "A partition was recovered without its last records. Its records that were in work begin again",
    "worker_draining": "A worker starts no new records and waits for its handlers",
    "worker_stopped": "A worker has ended. The records of handlers that were still running (`handlers_running`) are processed again",
    "transformer_started": "A transformer reads records and runs its handler",
    "transformer_draining": "A transformer starts no new chunks and waits for the current ones",
    "transformer_stopped": "A transformer has ended. The next one repeats uncommitted records, and their outputs are written once",
    "transform_partition_begun": "A transformer begins a partition at `offset`. `is_resumed`: with the state that its last owner committed",
    "transform_partition_lost": "A transformer found that another member owns a partition, and left it",
    "transform_delayed": "A step of a transformer failed and is repeated",
    "transform_input_recovered": "A recovery lost records of a transformer's input from `kept_end_offset` on. Their outputs stay, and new records get their own",
    "transform_records_missed": "Records were deleted before a transformer handled them. It continues at `next_offset`",
    "transform_name_lost": "The name under which a transformer writes belongs to a later owner of the partition, or expired",
    "handler_failed": "A handler raised the exception that follows, or exceeded its time limit. Logged for the first failure of a kind, else at most every 5 s",
    "handler_failed_again": "A handler failed again in the same way",
    "handler_asked_to_retry": "A handler raised Retry",
    "failure_callback_failed": "A worker's on_failure raised the exception that follows. It has no other effect",
    "shutdown_hook_overdue": "A worker's on_shutdown exceeded its time limit. The worker ended without it",
    "handler_loop_interrupted": "SystemExit or KeyboardInterrupt escaped from a task or hook on the event loop of async handlers. The loop continues",
    "handler_overdue": "A handler in a thread exceeded its time limit and cannot be stopped. Its record is blocked until it returns",
    "record_dead_lettered": "A record was moved to the dead-letter topic after its last attempt",
    "revocation_overdue": "Handlers of revoked partitions did not end in time. The next owner repeats their records",
    "query_progressed": "A `LagListener` was told of a batch of a Spark query, or of an idle query, which is `lag` records behind its topics",
    "query_lost_records": "Records (or whole topics) were deleted before a Spark query with failOnDataLoss=false read them",
    "query_lag_unknown": "The cluster did not tell a `LagListener` the ends of partitions. Logged at most once a minute",
    "query_not_committed": "A `LagListener` could not commit the offsets of a Spark query, for example to a group with members (FENCED). Logged at most once a minute",
    "progress_not_committed": "A worker's commit failed and is repeated. Records that remain uncommitted are processed again",
}
"""Every event of the SDK with its meaning. A test compares the names with the calls in the code, both ways."""

log: Final = logging.getLogger("raftmq")
log.addHandler(logging.NullHandler())
_grpc_log: Final = logging.getLogger("grpc")
if _grpc_log.level == logging.NOTSET:  # the program's setting takes precedence
    _grpc_log.setLevel(logging.INFO)  # at DEBUG it logs each event loop, which hides other lines


class LogThrottle:
    """Limits how often a lasting condition is logged."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._said_at = float("-inf")

    def is_due(self) -> bool:
        """Return whether to log now: at most once per interval."""
        now = time.monotonic()
        if now - self._said_at < self._interval_seconds:
            return False
        self._said_at = now
        return True
