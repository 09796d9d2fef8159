"""`DeadLetters`: moves records that failed for the last time to another topic, with headers that give their origin.

Must not decide which records are moved. Invariant: `put` returns only when the record is on disk on a majority of the topic's replicas. If
the worker dies before it notes that, the record may be moved again.
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

HEADERS: Final = {
    "group": "the consumer group whose worker gave the record up",
    "topic": "the record's topic",
    "partition": "the record's partition, decimal",
    "offset": "the record's offset, decimal",
    "timestamp": "the record's timestamp, in milliseconds since 1970",
    "attempts": "the number of attempts by the worker that gave the record up",
    "error": "the class of the last error",
    "message": "the text of the last error, at most 1 KiB",
    "time": "the time at which the record was given up, in milliseconds since 1970",
    "value_bytes": "the size of the value, only if the value was omitted because the record was too large with its headers",
}
"""Names of the added headers, without the prefix, and their meaning. Values are UTF-8. Headers of an earlier move are replaced."""

Headers = tuple[tuple[str, bytes], ...]


class DeadLetterProducer(Protocol):
    """The part of a producer that is used here."""

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> RecordMetadata:
        """Send a record as `Producer.send_and_wait` does."""
        ...


class Sleep(Protocol):
    """``asyncio.sleep``, or its equivalent in virtual time."""

    async def __call__(self, seconds: float, /) -> None:
        """Wait."""


def headers_of(record: Record, group_id: str, attempts: int, failure: Failure, now_ms: int) -> Headers:
    """Return the headers of a dead letter: the record's own, then its origin and the reason."""
    message = failure.message.encode(errors="backslashreplace")
    said = {
        "group": group_id.encode(),
        "topic": record.topic.encode(),
        "partition": b"%d" % record.partition,
        "offset": b"%d" % record.offset,
        "timestamp": b"%d" % record.timestamp,
        "attempts": b"%d" % attempts,
        "error": failure.error.encode(errors="backslashreplace")[: settings.DEAD_LETTER_TEXT_BYTES_MAX],
        # Cutting may split a character. Its incomplete rest is removed, too.
        "message": message[: settings.DEAD_LETTER_TEXT_BYTES_MAX].decode(errors="ignore").encode(),
        "time": b"%d" % now_ms,
    }
    own = tuple(pair for pair in record.headers if not pair[0].startswith(HEADER_PREFIX))
    return own + tuple((HEADER_PREFIX + name, value) for name, value in said.items())


class DeadLetters:
    """Writes to one dead-letter topic on behalf of one consumer group."""

    def __init__(
        self, producer: DeadLetterProducer, topic: str, group_id: str, *, sleep: Sleep, rng: random.Random
    ) -> None:
        self.topic = topic
        self._producer = producer
        self._group_id = group_id
        self._sleep = sleep
        self._rng = rng

    async def put(self, record: Record, attempts: int, failure: Failure) -> None:
        """Move a record, with retries while they may help. If it is cancelled, the record may have been moved or not.

        Raises:
            RaftMQError: an error that no retry can cure, such as `UnknownTopicError`. The record was not moved.
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
                    # The value remains in the record's own topic, and the headers give its position.
                    headers = (*headers, (HEADER_PREFIX + "value_bytes", b"%d" % len(value)))
                    value = None
                elif key is not None or len(headers) > len(HEADERS):
                    key, headers = None, tuple(pair for pair in headers if pair[0].startswith(HEADER_PREFIX))
                else:
                    raise
            except RaftMQError as error:
                # Unknown outcomes are retried, too: a repeated dead letter is better than a lost one.
                if not error.retriable and error.outcome is not Outcome.UNKNOWN:
                    raise
                await self._sleep(backoff.next_seconds())
            else:
                data = (record.topic, record.partition, record.offset, attempts, failure.error)
                log.warning("record_dead_lettered topic=%s partition=%d offset=%d attempts=%d error=%s", *data)
                return
