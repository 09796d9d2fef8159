"""Every bound and interval of the SDK that is not a parameter, each with the reason for its value."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

RECORD_BYTES_MAX: Final = MIB
"""Maximum size of key, value and headers of one record. If its topic's `max.batch.bytes` is higher, a record may fill such a batch."""
REQUEST_BYTES_MAX: Final = 3 * MIB + MIB // 2
"""Maximum size of the batches in one append request: below gRPC's 4 MiB message, with space for its frame."""
MESSAGE_BYTES_MAX: Final = 8 * MIB
"""Maximum size of a message from a broker. A Poll answer stays below 4 MiB. A topology table of 10,000 partitions has almost 1 MiB."""
BATCH_BYTES_MIN: Final = KIB
"""Minimum `max_batch_size`. Below it the frames of requests and batches would outweigh the records."""
BATCH_BYTES_MAX: Final = REQUEST_BYTES_MAX - MIB
"""Maximum `max_batch_size`. With one more record of the usual limit, such a batch still fits into a request."""
TOPIC_BATCH_BYTES_KEY: Final = "max.batch.bytes"
TOPIC_BATCH_OVERHEAD_BYTES: Final = 4 * KIB
"""Part of `max.batch.bytes` that does not belong to records: the batch's header and the lengths of its columns."""
TOPIC_BATCH_BYTES_MAX: Final = RECORD_BYTES_MAX + TOPIC_BATCH_OVERHEAD_BYTES
"""The brokers' default of `max.batch.bytes`: one record of `RECORD_BYTES_MAX` with its frame. It can be raised to 3.5 MiB, because one batch
is sent in one gRPC message of at most 4 MiB."""
BATCH_FRAME_BYTES: Final = 256
"""Space for a batch's header, prelude and padding, which `RECORD_OVERHEAD_BYTES` does not cover."""
RECORD_OVERHEAD_BYTES: Final = 16
"""Bytes counted for each buffered record in addition to its own: two lengths in the body and part of its Python objects."""
MESSAGE_OVERHEAD_BYTES: Final = 64
"""The same for a message of a queue topic, whose batch has a dozen numbers for it."""

DELIVERY_TIMEOUT_MS_MAX: Final = 3_600_000
"""Maximum delivery timeout. Brokers remember each producer for twice as long (`fsm/producer_ids.py` REPLACEABLE_IDLE_MS), so they recognize
everything that it repeats."""
BATCHES_IN_FLIGHT_MAX: Final = 5
"""Maximum number of a producer's batches in flight per partition. Brokers remember that many to recognize a repeated one."""
BROKER_BYTES_IN_FLIGHT_MAX: Final = 8 * MIB
"""Maximum unanswered bytes per broker: 80 ms of work at 100 MB/s, so that a slow broker does not occupy the whole buffer."""
SMALL_REQUESTS_IN_FLIGHT_MAX: Final = 1
"""While that many requests to a broker are unanswered, records gather and only full batches are sent.

Otherwise, records that are sent one by one would each become a Raft entry. The time of an answer is the natural time to gather records.
"""
GATHER_SECONDS_MAX: Final = 0.1
"""Maximum age of an unanswered request for which records gather: a partition without a quorum must not delay others on its broker."""
STICKY_BYTES: Final = 64 * KIB
"""Bytes of records without a key that go to one partition before the next one is chosen (KIP-794).

With this value, 100 tasks that send single records make 260 requests of 20,000 records. With Kafka's 16 KiB they make 413, because each
change of the partition splits a round.
"""
STICKY_SECONDS: Final = 0.25
"""Maximum time on one partition, so that a slow producer's records spread over the partitions, too."""
BULK_CHUNK_BYTES: Final = 128 * KIB
"""Approximate size of the pieces that `send_many` reads from its iterable: small compared with the buffer, and large enough that the work per
piece is negligible."""
BULK_CHUNK_RECORDS_MAX: Final = 2048

UNOBSERVED_FAILURES_MAX: Final = 64
"""Maximum number of failed batches remembered for `flush`. A program that awaits nothing and never flushes must not collect them indefinitely."""
DELETED_LEADERS_MAX: Final = 1024
"""Maximum number of remembered leaders of deleted partitions. The latest ones are kept."""
DELETED_TOPICS_MAX: Final = 1024
"""Maximum number of remembered ids of deleted topics. The latest ones are kept: answers that were under way are seconds old."""
NAME_CONFIRM_SECONDS: Final = 600.0
"""Interval at which a named producer confirms its name. Brokers forget names after 14 days, and a producer that sends nothing learns within
this time that it was replaced. Each confirmation is an entry in the metadata log: 2 per second for 1,000 producers."""
PREDECESSOR_SECONDS: Final = 4.0
"""Time for which a new named producer waits for brokers that it cannot inform of its epoch. A broker accepts records of named producers only
while its metadata is at most 2.5 s old, so after this time it knows the epoch or accepts nothing. The rest allows for clock drift."""
FENCE_ANSWER_SECONDS: Final = 1.0
"""Time limit of one attempt to inform a broker. Answers take milliseconds, unless records of the predecessor wait for a majority."""
NAME_BYTES_MAX: Final = 249
"""Maximum length of a producer name, as on the brokers."""
OWN_EPOCH_BITS: Final = 32
"""The lower bits of a named producer's epoch, which it raises itself when it abandons a sequence. The upper bits are the name's epoch."""

TOPICS_IN_CREATION_MAX: Final = 16
"""Concurrent requests of one `create_topics`: enough to share commits of the metadata group, and few compared with a broker's slots."""

RETRY_BACKOFF_MIN_SECONDS: Final = 0.02
RETRY_BACKOFF_MAX_SECONDS: Final = 1.0
"""Backoff of one partition, which doubles with jitter. The first retries catch a new leader quickly. The last do not add to an outage."""
LAST_TRY_SECONDS: Final = 0.1
"""Time for the last step of an operation whose earlier steps used all the time: enough if the cluster is available."""
LATE_ANSWER_SECONDS: Final = 2.0
"""Time after which a missing answer makes a broker suspect: the topology is then watched through another one."""
LATE_LEADER_SECONDS: Final = 60.0
"""Time for which a metadata leader that has not answered is asked through other brokers, unless there is a new one."""
TICK_SECONDS: Final = 0.1
"""Interval of checks for expiry while any request is unanswered. It is the precision of delivery timeouts."""

WATCH_FIRST_UPDATE_SECONDS: Final = 3.0
"""Time limit for the first topology update of a broker. After it, the broker is skipped, because it may be frozen."""
WATCH_BACKOFF_MIN_SECONDS: Final = 0.05
WATCH_BACKOFF_MAX_SECONDS: Final = 1.0
CONNECT_BACKOFF_MAX_SECONDS: Final = 1.0
"""Maximum backoff of gRPC's own reconnection. Its default of two minutes would outlast every failover."""
UNUSED_CONNECTION_SECONDS: Final = 60.0
"""Time after which a connection to an address without a broker is closed. Every request to that address has ended by then."""
CLOSE_GRACE_SECONDS: Final = 0.5

DATA_OPEN_SECONDS: Final = 2.0
"""Patience with a broker that is asked for a data connection: as `LATE_ANSWER_SECONDS`, after which it is suspect."""
DATA_CONNECT_SECONDS: Final = 1.0
"""Patience with the data port itself. The broker has just answered over gRPC, so a port that does not answer is blocked on the way."""
DATA_RETRY_SECONDS: Final = 60.0
"""How long gRPC is used where there is no data connection, until the next attempt to open one."""
DATA_UNACKED_SECONDS: Final = 30
"""TCP gives a data connection up when the broker's host acknowledges nothing for this time, or the broker reads nothing, and probes a
silent one as often. An overloaded broker reads nothing for seconds: ending its connections then would make it read everything twice."""
DATA_TIMEOUT_GRACE_SECONDS: Final = 0.1
"""How long after a call's timeout its answer is still waited for: the broker knows better what became of the call."""
DATA_WRITE_BUFFER_BYTES: Final = 256 * KIB
"""Unsent bytes of a data connection above which appends wait: one large request is under way, and the next is not copied yet."""
DATA_LARGE_BUFFER_SECONDS: Final = 1.0
"""How long a data connection keeps the read buffer of a large answer: to allocate one for each costs more than the answer's copy."""
DATA_JOIN_BYTES_MAX: Final = 16 * KIB
"""A request up to this size is copied behind its frame's header, which costs less than a second system call."""

POLLS_IN_FLIGHT_MAX: Final = 4
"""Maximum number of concurrent long polls of one consumer to one broker, so that a partition can be fetched while others wait."""
LATE_POLL_SECONDS: Final = 2.0
"""Additional time for a poll beyond its `max_wait_ms` before the broker is suspect."""
FETCH_MESSAGE_BYTES_MAX: Final = 3 * MIB + MIB // 2
CONSUMER_BUFFER_BYTES_MAX: Final = 32 * MIB
"""Maximum bytes fetched and not yet returned, over all partitions of one consumer. Answers under way may exceed it, and one batch of each partition."""

LOG_INTERVAL_SECONDS: Final = 5.0
"""Minimum interval between warnings about a lasting condition, such as that no broker is reachable."""
UNREACHABLE_BEFORE_WARNING_SECONDS: Final = 1.0
"""Time without any broker before a warning. A connection that breaks and recovers immediately is not reported."""
OTHER_CLUSTER_SECONDS: Final = 60.0
"""Time without any broker of the cluster after which a client ends, if another cluster answers at some of its addresses. After the metadata was
recovered, all brokers have another cluster id, and those that are gone for good would be waited for without end."""
FAILURES_BEFORE_WARNING: Final = 6
"""Consecutive failures of one partition before a warning: about a second, longer than a leader change takes."""

GROUP_RETRY_SECONDS: Final = 0.2
"""Wait before a failed heartbeat is sent to the next broker. It grows to `RETRY_BACKOFF_MAX_SECONDS`. An election takes about as long."""
HEARTBEAT_ANSWER_SECONDS: Final = 5.0
"""Maximum time limit of one heartbeat before another broker is asked. Joining waits for the metadata group, and a session is 45 s."""
HEARTBEAT_SECONDS_MIN: Final = 0.05
"""Minimum interval of heartbeats, whatever a broker requests, so that they do not become a load."""
LEAVE_TRIES_MAX: Final = 5
"""Attempts to report that a member left. If none succeeds, its session expires."""
LEAVE_SECONDS: Final = 3.0
"""Maximum time for which `close` tries to report that the member leaves. After it, the session expires."""
OFFSETS_TOUCH_SECONDS: Final = 300.0
"""Interval at which an unchanged offset that no member owns is committed again, or brokers would delete it a week later as unused, although a
consumer of a quiet partition runs all the time. Brokers rely on less than 450 s (`TOUCHED_SECONDS_MAX` in `broker/partitions/committed_offsets.py`)."""
CLOSE_COMMIT_SECONDS: Final = 5.0
"""Maximum time for the last commit. Records that are not committed are read again, which is better than a program that does not end."""
OPEN_SECONDS: Final = 3.0
"""Time limit of one attempt to open partitions. Those whose leaders answer are read while the others are retried."""
FENCED_SECONDS: Final = 40.0
"""Time after which a member joins again if a partition refuses it although the group still assigns it under the same epoch. A reset of
offsets gives new epochs within the 30 s of its call. If it was interrupted, or the group was deleted while the member joined, nobody does."""
POSITIONS_SECONDS: Final = 3.0
"""Time limit of one attempt to look up positions. As with `OPEN_SECONDS`, a partition without a leader must not delay the others."""
LOOP_HOLD_SECONDS: Final = 0.01
"""Time for which calls that need not wait occupy the event loop before the program's other tasks may run. In 10 ms a loop over `send` fills a
batch, so requests stay large, and one turn of the loop, some 20 us, is negligible."""
LOOP_LOOK_CALLS: Final = 16
"""Number of calls between two looks at the clock. A look costs 0.2 us, a call 2 us."""
LOOP_BLOCKED_SECONDS: Final = 2.0
"""Time for which the event loop may be blocked before a warning: nothing is fetched or committed while it is."""
LOOP_CHECK_SECONDS: Final = 0.5
"""Interval at which the heartbeat thread checks whether the event loop responds."""
WORKER_PARTITION_RECORDS_MAX: Final = 1000
"""Maximum number of records of a partition that are taken and not below the committable progress. It limits how far a partition advances beyond
a slow record. 1,000 records keep a handler of 10 ms busy for ten seconds."""
WORKER_RECORDS_MAX: Final = 10_000
"""The same over all partitions of a worker: small objects of some 500 bytes, so 5 MB beside the records themselves."""
WORKER_BYTES_MAX: Final = 64 * MIB
"""Bytes of keys, values and headers in work above which no more records are taken. One poll may exceed it by `CONSUMER_BUFFER_BYTES_MAX`."""
WORKER_POLL_MS: Final = 500
"""Maximum time for which a worker's poll waits. It ends earlier when handlers free capacity."""
WORKER_PROCESS_START_SECONDS: Final = 60.0
"""Time limit for a process to load its handler. Importing large libraries on a busy machine takes many seconds."""
WORKER_REVOCATION_BEGIN_SECONDS: Final = 2.0
"""Time for which a worker that releases partitions still starts records below their highest finished one. Nobody processes other records of
these partitions in that time, and finished records are never repeated."""
WORKER_DRAIN_RETRY_SECONDS: Final = 1.0
"""Maximum wait before the retry of a record whose partition is being released. A longer wait is left to the next owner. So a transient failure
is retried here, and one that needs a repair is not."""
WORKER_RETRY_AFTER_SECONDS_MAX: Final = 86_400.0
"""Maximum wait that a handler may request. A waiting record blocks its key, and also its partition when too many records follow it."""
WORKER_SHUTDOWN_HOOK_SECONDS: Final = 10.0
"""Time limit of a worker's `on_shutdown`, after which the worker ends without it."""
WORKER_FAILURE_KINDS_MAX: Final = 100
"""Maximum number of kinds of failures (topic and error class) whose first failure is logged immediately. The rest are rate-limited."""
WORKER_FAILURE_TEXT_MAX: Final = 1000
"""Maximum number of characters of an error's text in a log line. The traceback after it contains the whole text."""
WORKER_HANDLER_END_SECONDS: Final = 2.0
"""Time limit for cancelled async handlers to end, after which they are abandoned."""
DEAD_LETTER_TEXT_BYTES_MAX: Final = KIB
"""Maximum bytes of an error's text in a header: enough for the sentence of nearly every error, and too few for a payload in it."""
DEAD_LETTER_HEADERS_BYTES: Final = 8 * KIB
"""Space for headers in a dead-letter topic that a worker creates: more than all headers with the longest names and texts."""
DEAD_LETTER_DELIVERY_MS: Final = 15_000
"""Delivery timeout of dead letters. The worker retries afterwards, so it only limits how long a stopping worker waits."""
REDRIVE_CHUNK_RECORDS_MAX: Final = 500
"""Maximum number of dead letters sent back under one ledger entry: three calls to the metadata group for each 500 records."""
REDRIVE_CHUNK_BYTES_MAX: Final = 2 * MIB
"""Maximum bytes of those dead letters, unless a single one is larger. A chunk for one partition fits into one append request."""
EXACT_BATCH_BYTES_MAX: Final = 512 * KIB
"""Maximum bytes of redriven or transformed records in a batch, unless a single one is larger, as in the producer."""
REQUEST_PARTITIONS_MAX: Final = 2_000
"""Maximum number of partitions in a request. Brokers refuse more."""
REQUEST_BATCHES_MAX: Final = 64
"""Maximum number of batches of one partition in an append request. Brokers refuse more."""
REDRIVE_REQUEST_SECONDS: Final = 10.0
"""Time limit of one append of a redrive, after which it is repeated."""
TRANSFORM_CHUNK_RECORDS_MAX: Final = 2_000
"""Maximum number of input records of one partition that a transformer handles, writes and commits together. Their outputs fill batches of a
useful size even when they are spread over several partitions."""
TRANSFORM_CHUNK_BYTES_MAX: Final = 2 * MIB
"""Maximum bytes of those records, and of their outputs. The record that exceeds it is still part of the chunk."""
TRANSFORM_CHUNK_SECONDS: Final = 0.2
"""Handler time after which a chunk ends, so that outputs of slow handlers are written while the next ones run."""
TRANSFORM_AHEAD_RECORDS: Final = 8_000
"""How far beyond the committed offset outputs may be written: four chunks, so that nothing waits for a commit. A transformer uses a changed
number of output partitions at most this many input records later."""
TRANSFORM_BUFFER_RECORDS: Final = 4_000
"""Maximum number of records of one partition that wait for their chunk. Above it the partition is not read."""
TRANSFORM_PROOF_SECONDS: Final = 13 * 86_400.0
"""Brokers remember a named producer for 14 days after its last batch in a partition (`fsm/producer_ids.py` NAMED_EXPIRY_MS). A producer that
is younger than this is certainly remembered. The difference allows for clocks that differ."""
TRANSFORM_NOTE_BYTES_MAX: Final = 4096
"""Maximum size of a transformer's state, which is the note of a commit. It is the brokers' limit."""
TRANSFORM_CLAIM_SECONDS: Final = 30.0
"""Time limit of one attempt to begin under a producer name. It waits up to `PREDECESSOR_SECONDS` for brokers that cannot be informed."""
TRANSFORM_DRAIN_SECONDS: Final = 10.0
"""Time for which a stopping transformer waits for its chunks. An interrupted chunk is repeated by the next one, and written once."""

LOG_KIND: Final = "log"
QUEUE_KIND: Final = "queue"
"""The kinds of topics, as the cluster names them."""
TOPIC_ORDERED_BY_KEY_KEY: Final = "ordered.by.key"
TOPIC_SINGLE_ACTIVE_KEY: Final = "single.active.consumer"
TOPIC_MESSAGE_BYTES_KEY: Final = "max.message.bytes"
MESSAGE_BYTES_DEFAULT: Final = MIB
"""The brokers' default of `max.message.bytes`."""

MESSAGE_ERROR_BYTES_MAX: Final = KIB
"""Maximum bytes of the error or the progress that is kept with a message, as on the brokers. Longer texts are cut."""
ACK_MESSAGES_MAX: Final = 500
"""Maximum number of messages settled by one request to a partition. It leaves half of an entry's work to the leases that travel with it."""
ACKS_IN_FLIGHT_MAX: Final = 5
"""Unanswered requests with settlements to one partition. A partition remembers the answers to so many requests of a session."""
CHAIN_MESSAGES_MAX: Final = ACK_MESSAGES_MAX - 1
"""Maximum number of messages that the acceptance of one message puts: both count as work of one entry."""
SESSION_RETRY_SECONDS: Final = 60.0
"""The least interval between two requests for a session in a partition that had too many. Idle ones expire after ten minutes."""
ACK_CHECK_SECONDS: Final = 0.5
"""Interval of checks for settlements that are overdue, while any is unanswered."""
QUEUE_SURPLUS_SECONDS: Final = 0.1
"""Time for which a message that nobody waits for stays with the client. A loop over `get` asks again within it."""
QUEUE_CREDIT_BYTES: Final = 4 * MIB
"""Bytes of messages that a broker may send ahead on one stream: as large as an answer, and above the largest message."""
QUEUE_CREDIT_MAX: Final = 1000
"""Maximum number of messages in a client's simultaneous requests to all leaders: as many as one entry may lease."""
QUEUE_INTAKES_MAX: Final = 8
"""Maximum number of combinations of lease time and tenants for which streams stay open. Those unused for longest are closed first."""
QUEUE_CLOSE_SECONDS: Final = 5.0
"""Maximum time for which `close` waits for settlements. Messages that are not settled are delivered again."""
LEASE_MS_MIN: Final = 1000
"""Shortest lease that a program may request: a shorter one may end between two looks at the leases that are held."""
LEASE_MS_MAX: Final = 12 * 60 * 60 * 1000
"""Longest lease that a program may request. Brokers grant at most the topic's `lease.max.ms`, whose maximum this is."""
LEASE_TICK_SECONDS: Final = 0.25
"""Interval at which held leases are looked at. The renewal of the shortest lease begins with 0.4 s to spare."""
LEASE_ASSUMED_SECONDS: Final = 30.0
"""The assumed length of a lease whose broker does not tell it."""
LEASE_RENEWALS_MAX: Final = 2000
"""Maximum number of leases renewed by one request to a broker."""
LEASE_RENEWAL_SECONDS: Final = 2.0
"""Time limit of one request for renewals. A frozen broker must not keep the leases of others from being renewed."""
QUEUE_POLL_SLICE_MS: Final = 500
"""Time for which one of several leaders is polled before the next one, so that a message on another leader is found soon."""
SINGLE_ACTIVE_WAIT_SECONDS: Final = 1.0
"""Time for which a call that must not wait asks the stream of the active consumer, which does not say that it has nothing. As long as a broker
takes at most for a poll that must not wait."""
QUEUE_POLL_WAIT_MS: Final = 10_000
"""Time for which the only leader is polled, before another one may lead."""
BROWSE_PAGE_MESSAGES: Final = 500
"""Messages in a page of a browse without bodies. A page is made between two turns of the broker's loop."""
BROWSE_PAGE_BODIES: Final = 50
"""Messages in a page with bodies."""
WAIT_FINISHED_MS: Final = 10_000
"""Maximum wait of one request for the end of a message, after which it is asked again."""
PUT_REQUEST_MS_MAX: Final = 10_000
"""Maximum time limit of one append request of a queue, after which it is repeated, as the producer's default."""
SCHEDULE_EVERY_MS_MIN: Final = 1000
"""Minimum interval of a schedule. Shorter ones are the work of a program."""
