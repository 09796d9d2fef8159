"""Find the bodies of messages: in the entries that brought them, or evacuated in the state file. Bodies are never decoded.

A body that was evacuated keeps the facts that its batch had about it: its place, its checksum, its codec and the message's headers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from struct import Struct
from typing import Final, NamedTuple

from raftmq.batch_header import CODEC_NONE
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.queue.enqueued import read_messages
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.raft.entry import Entry
from raftmq.storage.errors import DamagedReplicaError
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.state_store import StateStore
from raftmq.types import LogIndex, Offset

_CACHED_BATCHES_MAX: Final = 256
"""Batches whose columns stay unpacked, for consumers that take their messages one by one."""
_READ_BYTES_MAX: Final = 1 << 20
_HEAD: Final = Struct("<IIBI")
"""Position in the batch, checksum, codec, and length of the headers (`_NO_HEADERS`: none)."""
_NO_HEADERS: Final = (1 << 32) - 1


class StoredBody(NamedTuple):
    """A message's body, and the facts that its batch has about it."""

    body: bytes | memoryview
    position: int
    checksum: int
    codec: int
    headers: bytes | None


class _Batch:
    """The messages of one entry."""

    __slots__ = ("_codecs", "_fields", "_starts", "_view", "base_offset")

    def __init__(self, entry: Entry) -> None:
        payload, fields = read_messages(entry.payload)
        self.base_offset = entry.base_offset
        self._fields = fields
        self._view = memoryview(payload)
        self._starts = list(accumulate(fields.body_lengths, initial=fields.body_start))

    def body(self, sequence: int) -> StoredBody:
        """Return the body of one of its messages. It shares the entry's memory."""
        position, fields = sequence - self.base_offset, self._fields
        return StoredBody(
            self._view[self._starts[position] : self._starts[position + 1]],
            position,
            fields.body_checksums[position],
            fields.codecs[position] if fields.codecs is not None else CODEC_NONE,
            fields.headers[position] if fields.headers is not None else None,
        )


def encode_body(body: StoredBody) -> bytes:
    """Return the value of an evacuated body's row."""
    headers = body.headers
    length = _NO_HEADERS if headers is None else len(headers)
    return b"".join((_HEAD.pack(body.position, body.checksum, body.codec, length), headers or b"", body.body))


def decode_body(value: bytes) -> StoredBody:
    """Invert `encode_body`."""
    position, checksum, codec, length = _HEAD.unpack_from(value)
    start = _HEAD.size
    headers = None if length == _NO_HEADERS else value[start : start + length]
    if headers is not None:
        start += length
    return StoredBody(memoryview(value)[start:], position, checksum, codec, headers)


class QueueBodiesReader:
    """Finds the bodies of one partition's messages."""

    def __init__(self, replica: Replica[QueuePartition], store: StateStore) -> None:
        self._replica = replica
        self._store = store
        self._batches: OrderedDict[LogIndex, _Batch] = OrderedDict()

    def clear(self) -> None:
        """Forget unpacked batches: a snapshot replaced the log."""
        self._batches.clear()

    def in_memory(self, sequences: Sequence[int]) -> list[StoredBody] | None:
        """Return the bodies of messages, or None if one is not in memory."""
        recent = self._replica.log.recent
        found: list[StoredBody] = []
        for sequence in sequences:
            index = recent.index_of_offset(Offset(sequence))
            if index is None:
                return None
            batch = self._batches.get(index)
            if batch is None:
                entry = recent.get(index)
                assert entry is not None
                batch = self._remember(index, _Batch(entry))
            found.append(batch.body(sequence))
        return found

    def _remember(self, index: LogIndex, batch: _Batch) -> _Batch:
        batches = self._batches
        batches[index] = batch
        if len(batches) > _CACHED_BATCHES_MAX:
            batches.popitem(last=False)
        return batch

    def read(self, sequences: Iterable[int]) -> dict[int, StoredBody]:
        """Read bodies in a thread. Those of messages that were finished in the meantime may be missing.

        Raises as the store's reads.
        """
        return read_bodies(self._store, self._replica.key, sequences)


def read_bodies(store: StateStore, key: ReplicaKey, sequences: Iterable[int]) -> dict[int, StoredBody]:
    """Read the bodies of messages from a replica's files. Those of messages that are finished may be missing."""
    through = store.evacuated_through(key)
    found: dict[int, StoredBody] = {}
    batch: _Batch | None = None
    last_end = -1
    for sequence in sorted(sequences):
        if sequence <= through:
            value = store.read_body(key, sequence)
            if value is not None:
                found[sequence] = decode_body(value)
            continue
        if batch is None or sequence >= last_end:
            index = store.find_offset(key, Offset(sequence))
            if index is None:
                # evacuated since `through` was read, or finished
                value = store.read_body(key, sequence)
                if value is not None:
                    found[sequence] = decode_body(value)
                continue
            (entry,) = store.entries(key, index, index, _READ_BYTES_MAX)
            try:
                batch = _Batch(entry)
            except ValueError as error:
                raise DamagedReplicaError(key, f"entry {index} is no batch of messages: {error}") from error
            last_end = entry.next_offset
        found[sequence] = batch.body(sequence)
    return found
