"""Read the payloads of a queue partition's DATA entries: a batch of messages, a firing of a schedule, or a chain.

A **chain** accepts messages and enqueues others in one entry: those that belong to a message are enqueued only if it was accepted. Its
layout, little-endian, frozen once released:

    offset size field
         0    2 magic 0x4352
         2    1 version
         3    1 zero
         4    4 chain_bytes
         8    n a `Chain`, encoded as MessagePack
       8+n    m a batch of messages with its header
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import msgspec
from raftmq.batch_header import (
    FIRING_MAGIC,
    QUEUE_BATCH_MAGIC,
    BatchFormatError,
    BatchHeader,
    UnsupportedBatchVersionError,
    magic_of,
    parse_header,
)
from raftmq.fsm.queue.commands import Chain
from raftmq.queue_batch import Firing, QueueFields, parse_fields, parse_firing

CHAIN_MAGIC: Final = 0x4352
CHAIN_VERSION: Final = 1
_CHAIN = Struct("<HBBI")
_DECODER = msgspec.msgpack.Decoder(Chain)
_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


class ReadEntry(NamedTuple):
    """A DATA entry, as the machine sees it."""

    header: BatchHeader
    fields: QueueFields
    firing: Firing | None = None
    chain: Chain | None = None
    """The messages that are accepted, and those that are enqueued with each of them."""


def read_entry(payload: bytes) -> ReadEntry | None:
    """Read a payload, without its bodies. None: it is nothing of this, and its sequences stay empty.

    Raises:
        UnsupportedBatchVersionError: a newer version wrote it.
    """
    try:
        magic = magic_of(payload)
        if magic == CHAIN_MAGIC:
            return _read_chain(payload)
        if magic == FIRING_MAGIC:
            firing = parse_firing(payload)
            return ReadEntry(parse_header(payload, FIRING_MAGIC), firing.fields, firing)
        return _read_batch(payload)
    except UnsupportedBatchVersionError:
        raise
    except BatchFormatError:
        return None


def encode_chain(chain: Chain, batch: bytes) -> bytes:
    """Return the payload of an entry that accepts and enqueues. `batch` is sealed."""
    encoded = _ENCODER.encode(chain)
    return b"".join((_CHAIN.pack(CHAIN_MAGIC, CHAIN_VERSION, 0, len(encoded)), encoded, batch))


def _read_batch(payload: bytes) -> ReadEntry:
    return ReadEntry(parse_header(payload, QUEUE_BATCH_MAGIC), parse_fields(payload))


def _read_chain(payload: bytes) -> ReadEntry:
    if len(payload) < _CHAIN.size:
        raise BatchFormatError(f"a chain has at least {_CHAIN.size} bytes, but this one has {len(payload)}")
    _, version, _, chain_bytes = _CHAIN.unpack_from(payload)
    if version != CHAIN_VERSION:
        raise UnsupportedBatchVersionError(f"chain version {version} is not supported, only {CHAIN_VERSION} is")
    end = _CHAIN.size + chain_bytes
    try:
        chain = _DECODER.decode(payload[_CHAIN.size : end])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        # As with a command that cannot be read: skipping it would lead to another state than that of brokers that can.
        raise UnsupportedBatchVersionError("the acceptances of a chain cannot be read") from error
    return _read_batch(payload[end:])._replace(chain=chain)


def read_messages(payload: bytes) -> tuple[bytes, QueueFields]:
    """Return the part of an applied entry's payload that has its messages, and their fields. Bodies begin at `body_start` of the part.

    Raises:
        BatchFormatError: the payload holds no messages.
    """
    magic = magic_of(payload)
    if magic == FIRING_MAGIC:
        return payload, parse_firing(payload).fields
    if magic == CHAIN_MAGIC and len(payload) >= _CHAIN.size:
        payload = payload[_CHAIN.size + _CHAIN.unpack_from(payload)[3] :]
    return payload, parse_fields(payload)
