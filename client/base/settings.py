"""Every bound and interval of the SDK that is not a parameter, each with the reason for its value."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

RECORD_BYTES_MAX: Final = MIB
"""Key, value and headers of one record, unless its topic's `max.batch.bytes` is raised: then as much as fits such a batch."""
REQUEST_BYTES_MAX: Final = 3 * MIB + MIB // 2
"""Batches in one append request: below gRPC's 4 MiB message with room for its frame."""
MESSAGE_BYTES_MAX: Final = 8 * MIB
"""Largest message taken from a broker. A Poll answer stays below 4 MiB; a topology table of 10,000 partitions is near 1 MiB."""
BATCH_BYTES_MIN: Final = KIB
"""The least `max_batch_size`: below it the frames of requests and batches would outweigh the records."""
BATCH_BYTES_MAX: Final = REQUEST_BYTES_MAX - MIB
"""The largest `max_batch_size`: with one more record of the usual limit such a batch still fits a request."""
TOPIC_BATCH_BYTES_KEY: Final = "max.batch.bytes"
TOPIC_BATCH_OVERHEAD_BYTES: Final = 4 * KIB
"""What that setting allows on top of a record: the batch's header and the lengths of its columns."""
TOPIC_BATCH_BYTES_MAX: Final = RECORD_BYTES_MAX + TOPIC_BATCH_OVERHEAD_BYTES
"""The brokers' default of that topic setting: one record of `RECORD_BYTES_MAX` with its frame. It can be raised to 3.5 MiB, as one
batch travels in one gRPC message of at most 4 MiB."""
BATCH_FRAME_BYTES: Final = 256
"""Room for a batch's header, prelude and padding, which `RECORD_OVERHEAD_BYTES` does not cover."""
RECORD_OVERHEAD_BYTES: Final = 16
"""Counted for each buffered record on top of its bytes: two lengths in the body and part of its Python objects."""

DELIVERY_TIMEOUT_MS_MAX: Final = 3_600_000
"""The longest delivery: for twice as long brokers remember each producer (`fsm/producer_ids.py` REPLACEABLE_IDLE_MS), so that
whatever it repeats is recognised."""
BATCHES_IN_FLIGHT_MAX: Final = 5
"""Batches of one producer under way per partition: brokers remember as many to recognise a repeated one."""
BROKER_BYTES_IN_FLIGHT_MAX: Final = 8 * MIB
"""Unanswered bytes per broker: 80 ms of work at 100 MB/s, so a slow broker does not take the whole buffer."""
SMALL_REQUESTS_IN_FLIGHT_MAX: Final = 1
"""While so many requests to a broker are unanswered, records gather and only full batches go out.

One by one records would otherwise become one Raft entry each; the answer's time is the natural gathering time.
"""
GATHER_SECONDS_MAX: Final = 0.1
"""An answer later than this no longer makes others gather: a partition without a quorum must not hold up its broker's others."""
STICKY_BYTES: Final = 64 * KIB
"""Records without a key stay on one partition for so many bytes, then go to the next (KIP-794).

100 tasks that send single records make 260 requests of 20,000 records this way, 413 with Kafka's 16 KiB: each move splits a round.
"""
STICKY_SECONDS: Final = 0.25
"""And no longer than this, so that a slow producer's records spread over the partitions, too."""
BULK_CHUNK_BYTES: Final = 128 * KIB
"""`send_many` takes records from its iterable in pieces of about this size: small beside the buffer, large enough that the
work per piece is nothing."""
BULK_CHUNK_RECORDS_MAX: Final = 2048

UNOBSERVED_FAILURES_MAX: Final = 64
"""Failed batches remembered for `flush`: a program that awaits nothing and never flushes must not collect them for ever."""
DELETED_LEADERS_MAX: Final = 1024
"""Leaders of deleted partitions that are remembered, those deleted last."""
NAME_CONFIRM_SECONDS: Final = 600.0
"""How often a named producer confirms its name: brokers forget names after 14 days, and one that sends nothing learns within this
time that it was replaced. Each is an entry in the metadata log: 2 a second for 1,000 producers."""
PREDECESSOR_SECONDS: Final = 4.0
"""So long after its epoch was given a named producer waits for brokers that cannot be asked whether they know of it. A broker takes
records of named producers only while its metadata is at most 2.5 s old, so by then it knows, or takes nothing; the rest is for clocks of different speeds."""
FENCE_ANSWER_SECONDS: Final = 1.0
"""One attempt to ask a broker that. Answers take milliseconds, unless records of the predecessor are under way without a majority."""
NAME_BYTES_MAX: Final = 249
"""Of a producer's name; the brokers' limit."""
OWN_EPOCH_BITS: Final = 32
"""The lower bits of a named producer's epoch are its own, for sequences that were broken off; the upper ones the name's epoch."""

TOPICS_IN_CREATION_MAX: Final = 16
"""Topics of one `create_topics` under way: enough to share the commits of the metadata group, few beside a broker's places for calls."""

RETRY_BACKOFF_MIN_SECONDS: Final = 0.02
RETRY_BACKOFF_MAX_SECONDS: Final = 1.0
"""Per partition, doubling with jitter: the first retries catch a leader that just changed, the last do not add to an outage."""
LAST_TRY_SECONDS: Final = 0.1
"""What the last step of something is given when the steps before took all the time: enough for a cluster that is there."""
LATE_ANSWER_SECONDS: Final = 2.0
"""An answer later than this makes the broker suspect: the topology is watched through another one."""
TICK_SECONDS: Final = 0.1
"""How often expiry is checked while anything is outstanding; delivery timeouts are as exact as this."""

WATCH_FIRST_UPDATE_SECONDS: Final = 3.0
"""A broker that does not send its topology in this time is passed over (it may be frozen)."""
WATCH_BACKOFF_MIN_SECONDS: Final = 0.05
WATCH_BACKOFF_MAX_SECONDS: Final = 1.0
CONNECT_BACKOFF_MAX_SECONDS: Final = 1.0
"""gRPC's own reconnecting; its default of two minutes would outlast every failover."""
UNUSED_CONNECTION_SECONDS: Final = 60.0
"""A connection to an address where no broker is any more is closed after this time: whatever was asked there has ended by then."""
CLOSE_GRACE_SECONDS: Final = 0.5

POLLS_IN_FLIGHT_MAX: Final = 4
"""Long polls of one consumer to one broker at once: a partition that became hungry does not wait for the poll of the others."""
LATE_POLL_SECONDS: Final = 2.0
"""Grace on top of a poll's `max_wait` before the broker is suspect."""
FETCH_MESSAGE_BYTES_MAX: Final = 3 * MIB + MIB // 2
CONSUMER_BUFFER_BYTES_MAX: Final = 32 * MIB
"""Fetched and not yet handed out, over all partitions of one consumer."""

LOG_INTERVAL_SECONDS: Final = 5.0
"""A warning about something that lasts, such as that no broker is reachable, is logged no more often than this."""
UNREACHABLE_BEFORE_WARNING_SECONDS: Final = 1.0
"""A connection that breaks and is there again at once is nobody's concern."""
FAILURES_BEFORE_WARNING: Final = 6
"""Failures in a row of one partition before a warning: about a second, more than a change of leaders takes."""

GROUP_RETRY_SECONDS: Final = 0.2
"""Until a heartbeat that failed is tried at the next broker; grows to `RETRY_BACKOFF_MAX_SECONDS`. An election takes about as long."""
HEARTBEAT_ANSWER_SECONDS: Final = 5.0
"""Most that one heartbeat may take before another broker is asked: joining waits for the metadata group, and a session is 45 s."""
HEARTBEAT_SECONDS_MIN: Final = 0.05
"""Whatever a broker asks for, heartbeats do not become a load of their own."""
LEAVE_TRIES_MAX: Final = 5
"""The session ends by itself when nobody hears that a member left."""
LEAVE_SECONDS: Final = 3.0
"""What `close` waits, at most, to say that the member leaves; then its session ends by itself."""
CLOSE_COMMIT_SECONDS: Final = 5.0
"""And for the last commit: what is not committed is read again, which is better than a program that does not end."""
OPEN_SECONDS: Final = 3.0
"""One attempt to open partitions: those whose leaders answer are read while the others are tried again."""
POSITIONS_SECONDS: Final = 3.0
"""One attempt to look positions up, as `OPEN_SECONDS`: a partition without a leader must not hold up the others."""
LOOP_HOLD_SECONDS: Final = 0.01
"""How long calls that need not wait keep the event loop: the program's other tasks run in between. In 10 ms a loop over `send` fills a
batch, so that its requests stay large, and one turn of the loop, some 20 us, costs nothing beside it."""
LOOP_LOOK_CALLS: Final = 16
"""Every so many calls look at the clock: a look costs 0.2 us, a call 2 us."""
LOOP_BLOCKED_SECONDS: Final = 2.0
"""A program that keeps the event loop this long is told so: nothing is fetched or committed meanwhile."""
LOOP_CHECK_SECONDS: Final = 0.5
"""How often the heartbeat thread looks whether the event loop answers."""
WORKER_PARTITION_RECORDS_MAX: Final = 1000
"""Records of a partition between what may be committed and what was taken: how far ahead of a slow record its partition gets. With 1,000, a
handler of 10 ms is kept busy for ten seconds."""
WORKER_RECORDS_MAX: Final = 10_000
"""The same over all partitions of a worker: small objects of some 500 bytes, so 5 MB beside the records themselves."""
WORKER_BYTES_MAX: Final = 64 * MIB
"""Keys, values and headers in work: above it nothing more is taken. What one poll brings may come on top: `CONSUMER_BUFFER_BYTES_MAX`."""
WORKER_POLL_MS: Final = 500
"""How long one poll of a worker waits; room that handlers make ends the waiting."""
WORKER_PROCESS_START_SECONDS: Final = 60.0
"""A process for handlers that has not loaded its handler in this time is given up: importing large libraries on a busy machine takes many
seconds."""
WORKER_REVOCATION_BEGIN_SECONDS: Final = 2.0
"""How long a worker that gives partitions up still begins what lies below their highest finished record. Nobody works on anything else of them
meanwhile, and what is finished is not repeated in any case."""
WORKER_DRAIN_RETRY_SECONDS: Final = 1.0
"""A record that fails while its partition is being given up is tried again within this time, or left to the next owner: for what fails once, not
for what fails until somebody has repaired it."""
WORKER_RETRY_AFTER_SECONDS_MAX: Final = 86_400.0
"""The longest wait that a handler may ask for: what waits holds its key up, and its partition once it is full behind it."""
WORKER_SHUTDOWN_HOOK_SECONDS: Final = 10.0
"""How long a worker's `on_shutdown` may take before the worker ends without it."""
WORKER_FAILURE_KINDS_MAX: Final = 100
"""Kinds of failures (topic and class of error) whose first is said at once; any other is said at the pace of all."""
WORKER_FAILURE_TEXT_MAX: Final = 1000
"""Characters of an error's text in a line of the log; the traceback below has all of it."""
WORKER_HANDLER_END_SECONDS: Final = 2.0
"""How long cancelled async handlers may take to end before they are left alone."""
DEAD_LETTER_TEXT_BYTES_MAX: Final = KIB
"""Of an error's text in a header: the whole sentence of nearly every error, and no payload that somebody put into one."""
DEAD_LETTER_HEADERS_BYTES: Final = 8 * KIB
"""What a dead letter may have beside the record, in a topic that a worker creates: more than all headers with the longest names and texts."""
DEAD_LETTER_DELIVERY_MS: Final = 15_000
"""Until the producer of dead letters gives a batch up; the worker then tries again, so it bounds only what a stopping worker waits."""
REDRIVE_CHUNK_RECORDS_MAX: Final = 500
"""Dead letters sent back under one entry of the ledger: three calls to the metadata group for each 500 records."""
REDRIVE_CHUNK_BYTES_MAX: Final = 2 * MIB
"""Of them, unless one alone has more: a chunk for one partition fits one append request."""
EXACT_BATCH_BYTES_MAX: Final = 512 * KIB
"""Of redriven or transformed records in a batch, unless one alone has more: as the producer's."""
REQUEST_BATCHES_MAX: Final = 64
"""Batches of one partition in an append request; brokers refuse more."""
REDRIVE_REQUEST_SECONDS: Final = 10.0
"""How long a broker may take for one append of a redrive before it is repeated."""
TRANSFORM_CHUNK_RECORDS_MAX: Final = 2_000
"""Input records of one partition that a transformer handles, writes and commits together: their outputs make batches worth a request even when
they are spread over some partitions."""
TRANSFORM_CHUNK_BYTES_MAX: Final = 2 * MIB
"""Of them, and of their outputs; the record that passes it is still in the chunk."""
TRANSFORM_CHUNK_SECONDS: Final = 0.2
"""A chunk ends after the handlers took this long, so that outputs of slow handlers are written while the next ones run."""
TRANSFORM_AHEAD_RECORDS: Final = 8_000
"""How far beyond the committed offset outputs may be written: four chunks, so that nothing waits for a commit. A transformer uses a changed
number of output partitions so many input records later at the latest."""
TRANSFORM_BUFFER_RECORDS: Final = 4_000
"""Records of one partition that wait for their chunk; the partition is not read while there are more."""
TRANSFORM_PROOF_SECONDS: Final = 13 * 86_400.0
"""Brokers remember a named producer for 14 days after its last batch in a partition (`fsm/producer_ids.py` NAMED_EXPIRY_MS). What is younger than
this is remembered for certain: the rest is for clocks that differ."""
TRANSFORM_NOTE_BYTES_MAX: Final = 4096
"""Of a transformer's state, which is the note of a commit: the brokers' limit."""
TRANSFORM_CLAIM_SECONDS: Final = 30.0
"""One attempt to begin under a producer's name: brokers that cannot be told of it are waited for up to `PREDECESSOR_SECONDS`."""
TRANSFORM_DRAIN_SECONDS: Final = 10.0
"""How long a transformer that stops waits for its chunks. What is cut short is done again by the next one, and written once."""
