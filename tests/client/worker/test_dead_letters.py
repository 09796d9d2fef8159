"""The contents of dead letters, and the retries of writing them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.client.base import settings
from raftmq.client.dead_letters.letter import HEADER_PREFIX
from raftmq.client.worker.dead_letters import HEADERS, DeadLetters, headers_of
from raftmq.client.worker.outcome import Failure, RetryPolicy
from raftmq.errors import (
    DeliveryExpiredError,
    DeliveryTimeoutError,
    RaftMQError,
    RecordTooLargeError,
    UnknownTopicError,
)
from raftmq.types import Record, RecordMetadata

RECORD = Record("orders", 3, 17, 1234, b"key", b"value", (("trace", b"1"),))
FAILURE = Failure("billing.NoMoneyError", "no money")


class Producer:
    """Returns prepared answers, and then accepts everything up to a size."""

    def __init__(self, *errors: RaftMQError, bytes_max: int = settings.RECORD_BYTES_MAX) -> None:
        self.errors = list(errors)
        self.bytes_max = bytes_max
        self.tries = 0
        self.written: list[tuple[str, object, object, int | None, dict[str, bytes]]] = []

    async def send_and_wait(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> RecordMetadata:
        self.tries += 1
        if self.errors:
            raise self.errors.pop(0)
        sizes = [len(part) for part in (key, value) if isinstance(part, bytes)]
        if sum(sizes) + sum(len(name) + len(text) for name, text in headers) > self.bytes_max:
            raise RecordTooLargeError("too large")
        assert partition is None
        self.written.append((topic, key, value, timestamp_ms, dict(headers)))
        return RecordMetadata(topic, 0, 0, 0)


def letters(producer: Producer, waits: list[float] | None = None) -> DeadLetters:
    async def sleep(seconds: float, /) -> None:
        if waits is not None:
            waits.append(seconds)

    return DeadLetters(producer, "orders.dead", "billing", sleep=sleep, rng=random.Random(1))


def test_headers_contain_the_origin_and_the_error() -> None:
    headers = headers_of(RECORD, "billing", 6, FAILURE, 99)
    assert headers == (
        ("trace", b"1"),
        ("raftmq.dead_letter.group", b"billing"),
        ("raftmq.dead_letter.topic", b"orders"),
        ("raftmq.dead_letter.partition", b"3"),
        ("raftmq.dead_letter.offset", b"17"),
        ("raftmq.dead_letter.timestamp", b"1234"),
        ("raftmq.dead_letter.attempts", b"6"),
        ("raftmq.dead_letter.error", b"billing.NoMoneyError"),
        ("raftmq.dead_letter.message", b"no money"),
        ("raftmq.dead_letter.time", b"99"),
    )


def test_every_header_is_documented() -> None:
    added = {name.removeprefix(HEADER_PREFIX) for name, _ in headers_of(RECORD, "g", 1, FAILURE, 0)} - {"trace"}
    assert added | {"value_bytes"} == set(HEADERS)


def test_headers_of_an_earlier_move_are_replaced() -> None:
    moved = Record("orders.dead", 0, 1, 2, None, b"", headers_of(RECORD, "billing", 6, FAILURE, 99))
    again = headers_of(moved, "repair", 1, Failure("KeyError", "x"), 100)
    assert len(again) == len(set(dict(again)))
    assert dict(again)["raftmq.dead_letter.topic"] == b"orders.dead"
    assert again[0] == ("trace", b"1")


@given(st.text(max_size=3000))
def test_any_error_text_can_be_a_header(text: str) -> None:
    """The texts contain surrogates and characters that are cut, and may be very long."""
    headers = dict(headers_of(RECORD, "g", 1, Failure("E", text), 0))
    message = headers["raftmq.dead_letter.message"]
    assert len(message) <= settings.DEAD_LETTER_TEXT_BYTES_MAX
    kept = message.decode()
    assert text.encode(errors="backslashreplace").decode().startswith(kept)


async def test_key_value_and_timestamp_are_kept() -> None:
    producer = Producer()
    await letters(producer).put(RECORD, 6, FAILURE)
    topic, key, value, timestamp_ms, _ = producer.written[0]
    assert (topic, key, value, timestamp_ms) == ("orders.dead", b"key", b"value", 1234)


async def test_retriable_errors_are_retried_with_growing_waits() -> None:
    waits: list[float] = []
    producer = Producer(DeliveryExpiredError(), DeliveryTimeoutError(), DeliveryExpiredError())
    await letters(producer, waits).put(RECORD, 1, FAILURE)
    assert producer.tries == 4
    assert len(producer.written) == 1
    assert len(waits) == 3
    assert waits[2] > waits[0] > 0


async def test_permanent_errors_are_raised() -> None:
    producer = Producer(UnknownTopicError("orders.dead"))
    with pytest.raises(UnknownTopicError):
        await letters(producer).put(RECORD, 1, FAILURE)
    assert producer.tries == 1


async def test_a_record_too_large_with_its_headers_loses_its_value() -> None:
    producer = Producer(bytes_max=600)
    large = Record("orders", 3, 17, 1234, b"key", b"x" * 500, (("trace", b"1"),))
    await letters(producer).put(large, 1, FAILURE)
    _, key, value, _, headers = producer.written[0]
    assert (key, value, headers["trace"]) == (b"key", None, b"1")
    assert headers["raftmq.dead_letter.value_bytes"] == b"500"


async def test_a_key_too_large_with_the_headers_is_omitted() -> None:
    producer = Producer(bytes_max=600)
    large = Record("orders", 3, 17, 1234, b"k" * 590, None, (("trace", b"1"),))
    await letters(producer).put(large, 1, FAILURE)
    _, key, value, _, headers = producer.written[0]
    assert (key, value) == (None, None)
    assert "trace" not in headers
    assert headers["raftmq.dead_letter.offset"] == b"17"


@given(st.integers(0, 20), st.integers(1, 30), st.integers(0, 2**32))
def test_waits_double_with_jitter_up_to_a_maximum_and_end(retries: int, attempts: int, seed: int) -> None:
    policy = RetryPolicy(retries, 0.1, 30.0)
    wait = policy.wait_seconds(FAILURE, attempts, random.Random(seed))
    if attempts > retries:
        assert wait is None
    else:
        assert wait is not None
        bound = min(30.0, 0.1 * 2 ** (attempts - 1))
        assert bound / 2 <= wait <= bound


def test_retries_of_none_are_unlimited() -> None:
    assert RetryPolicy(None, 0.1, 30.0).wait_seconds(FAILURE, 10**6, random.Random(1)) is not None
