"""`DeadLetters`: moves records that nothing could be made of to a topic of their own, with headers that say where they came from.

Must not decide what is poison. Invariant: `put` returns only when the record is on disk on a majority of the replicas there; if the worker
dies before it notes that, the record may be put there again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Final, Protocol

from raftmq.client.base import settings
from raftmq.client.base.background import Backoff
from raftmq.client.base.logs import log
from raftmq.client.dead_letters.letter import HEADER_PREFIX
from raftmq.client.worker.outcome import Failure
from raftmq.errors import Outcome, RaftMQError, RecordTooLargeError
from raftmq.types import Record, RecordMetadata

"""Of every header that is added. Those of an earlier move are replaced."""
HEADERS: Final = {
    "group": "the group whose worker gave the record up",
    "topic": "where it came from",
    "partition": "decimal",
    "offset": "decimal",
    "timestamp": "the record's, in milliseconds since 1970",
    "attempts": "how often it was tried, by the worker that gave it up",
    "error": "the class of the last error",
    "message": "its text, at most 1 KiB",
    "time": "when it was given up, in milliseconds since 1970",
    "value_bytes": "only where the value had to be left out, because with the headers the record was too large: its size",
}
"""Name, without the prefix → meaning; values are UTF-8."""

Headers = tuple[tuple[str, bytes], ...]


class DeadLetterProducer(Protocol):
    """What is used of a producer."""

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> RecordMetadata:
        """As `Producer.send_and_wait`."""
        ...


class Sleep(Protocol):
    """``asyncio.sleep``, or virtual time."""

    async def __call__(self, seconds: float, /) -> None:
        """Wait."""


def headers_of(record: Record, group_id: str, attempts: int, failure: Failure, now_ms: int) -> Headers:
    """The headers of a dead letter: the record's own, then where it came from and why it is here."""
    message = failure.message.encode(errors="backslashreplace")
    said = {
        "group": group_id.encode(),
        "topic": record.topic.encode(),
        "partition": b"%d" % record.partition,
        "offset": b"%d" % record.offset,
        "timestamp": b"%d" % record.timestamp,
        "attempts": b"%d" % attempts,
        "error": failure.error.encode(errors="backslashreplace")[: settings.DEAD_LETTER_TEXT_BYTES_MAX],
        # Cutting may split a character; what is left of it goes too.
        "message": message[: settings.DEAD_LETTER_TEXT_BYTES_MAX].decode(errors="ignore").encode(),
        "time": b"%d" % now_ms,
    }
    own = tuple(pair for pair in record.headers if not pair[0].startswith(HEADER_PREFIX))
    return own + tuple((HEADER_PREFIX + name, value) for name, value in said.items())


class DeadLetters:
    """Writes to one topic on behalf of one group."""

    def __init__(
        self, producer: DeadLetterProducer, topic: str, group_id: str, *, sleep: Sleep, rng: random.Random
    ) -> None:
        self.topic = topic
        self._producer = producer
        self._group_id = group_id
        self._sleep = sleep
        self._rng = rng

    async def put(self, record: Record, attempts: int, failure: Failure) -> None:
        """Move a record, trying again for as long as that may help. Cancelled, it may be there or not.

        Raises:
            RaftMQError: an error that no repetition will cure, such as `UnknownTopicError`; the record is not there.
        """
        headers = headers_of(record, self._group_id, attempts, failure, time.time_ns() // 1_000_000)
        key, value = record.key, record.value
        backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, self._rng)
        while True:
            try:
                await self._producer.send_and_wait(
                    self.topic, value=value, key=key, timestamp_ms=record.timestamp, headers=headers
                )
            except RecordTooLargeError:
                if value is not None:
                    # The value is still in its topic, and the letter says where.
                    headers = (*headers, (HEADER_PREFIX + "value_bytes", b"%d" % len(value)))
                    value = None
                elif key is not None or len(headers) > len(HEADERS):
                    key, headers = None, tuple(pair for pair in headers if pair[0].startswith(HEADER_PREFIX))
                else:
                    raise
            except RaftMQError as error:
                # Unknown outcomes, too: twice in the dead-letter topic is better than not at all.
                if not error.retriable and error.outcome is not Outcome.UNKNOWN:
                    raise
                await self._sleep(backoff.next_seconds())
            else:
                data = (record.topic, record.partition, record.offset, attempts, failure.error)
                log.warning("record_dead_lettered topic=%s partition=%d offset=%d attempts=%d error=%s", *data)
                return
