"""Commands that allocate producer ids: blocks of anonymous ids, and named producers with their epochs.

All are pure functions over `MetadataTables`.
"""

from __future__ import annotations

from typing import Final

import msgspec
from raftmq.fsm import codes
from raftmq.fsm.metadata_commands import (
    AllocateProducerIds,
    Done,
    ForgetProducerNames,
    InitNamedProducer,
    ProducerIdBlock,
    ProducerInitialized,
    Rejected,
    StampClaim,
)
from raftmq.fsm.metadata_tables import MetadataTables
from raftmq.fsm.producer_ids import NAME_EPOCH_SHIFT, NAMED_PRODUCER_BIT
from raftmq.fsm.producer_names import NAMED_PRODUCERS_MAX, STAMP_BYTES_MAX, USED_TIME_STEP_MS, NamedProducer
from raftmq.fsm.tables import is_key_text

PRODUCER_ID_BLOCK_MAX: Final = 1_000_000
FORGOTTEN_NAMES_MAX: Final = 1000
"""Names in one command, so that it takes a few milliseconds and at most 250 KB."""
EPOCH_MAX: Final = (1 << 64) - 1
"""Epochs travel as u64, and a Spark batch id is an epoch."""


def allocate_producer_ids(tables: MetadataTables, command: AllocateProducerIds) -> ProducerIdBlock | Rejected:
    """Allocate a block of ids, none of which is ever allocated again."""
    if not 1 <= command.count <= PRODUCER_ID_BLOCK_MAX:
        return Rejected(codes.INVALID_ARGUMENT, f"a block has between 1 and {PRODUCER_ID_BLOCK_MAX} ids")
    first = tables.cluster.next_producer_id
    tables.update_cluster(next_producer_id=first + command.count)
    return ProducerIdBlock(tables.cluster.revision, first, command.count)


def init_named_producer(
    tables: MetadataTables, command: InitNamedProducer, now_ms: int
) -> ProducerInitialized | Rejected:
    """Give a name its producer id, and raise, confirm or refuse its epoch. Then claim the second stamp, if the first is the command's.

    `now_ms` is the time of the expiry clock.
    """
    first = _claim(tables, command, now_ms)
    if command.then is None or isinstance(first, Rejected) or first.stamp != command.stamp:
        return first
    return msgspec.structs.replace(first, then=_claim(tables, command.then, now_ms))


def _claim(
    tables: MetadataTables, command: InitNamedProducer | StampClaim, now_ms: int
) -> ProducerInitialized | Rejected:
    if not is_key_text(command.name):
        return Rejected(codes.INVALID_ARGUMENT, "a producer's name has between 1 and 249 bytes")
    if command.epoch is not None and not 0 <= command.epoch <= EPOCH_MAX:
        return Rejected(codes.INVALID_ARGUMENT, "an epoch is an unsigned 64-bit number")
    if len(command.stamp) > STAMP_BYTES_MAX:
        return Rejected(codes.INVALID_ARGUMENT, f"a stamp has at most {STAMP_BYTES_MAX} bytes")
    names = tables.producer_names
    known = names.get(command.name)
    stamp, batch_epoch_min = command.stamp, 0
    if known is None:
        if len(names) >= NAMED_PRODUCERS_MAX:
            return Rejected(codes.TOO_MANY_NAMES, f"there are {NAMED_PRODUCERS_MAX} named producers")
        number = tables.cluster.next_named_producer
        tables.update_cluster(next_named_producer=number + 1)
        producer_id, epoch = NAMED_PRODUCER_BIT | number, command.epoch or 0
    else:
        producer_id = known.producer_id
        is_repeated = bool(command.stamp) and command.stamp == known.stamp
        epoch = known.epoch + (not is_repeated) if command.epoch is None else command.epoch
        if epoch < known.epoch:
            return Rejected(codes.PRODUCER_FENCED, f"producer {command.name!r} is at epoch {known.epoch}")
        if epoch > EPOCH_MAX:
            return Rejected(codes.INVALID_ARGUMENT, f"producer {command.name!r} is at the last epoch")
        if epoch == known.epoch and command.replaces != known.stamp:
            stamp = _united(known.stamp, command) if isinstance(command, StampClaim) else known.stamp
        batch_epoch_min = known.batch_epoch_min
        tables.update_cluster()
    if known is None or epoch > known.epoch:
        batch_epoch_min = max(batch_epoch_min, _first_batch_epoch(epoch, is_asked_for=command.epoch is not None))
    names.put(command.name, NamedProducer(producer_id, epoch, now_ms, stamp, batch_epoch_min))
    return ProducerInitialized(tables.cluster.revision, producer_id, epoch, stamp)


def _united(stamp: bytes, claim: StampClaim) -> bytes:
    """Return the present stamp with the bits of the claim, or as it is if the claim adds none."""
    shared = claim.shared_bytes
    if not 0 < shared <= len(claim.stamp) or stamp[:shared] != claim.stamp[:shared]:
        return stamp
    bits = int.from_bytes(stamp[shared:], "little") | int.from_bytes(claim.stamp[shared:], "little")
    return stamp[:shared] + bits.to_bytes(max(len(stamp), len(claim.stamp)) - shared, "little")


def standing_claim(
    tables: MetadataTables, command: InitNamedProducer, append_time_ms: int
) -> ProducerInitialized | None:
    """Return the answer to a claim of one name that would change nothing, or None if it must be applied.

    Nothing expires by a clock that stands still, so a claim is applied, too, if the last entry is `USED_TIME_STEP_MS` old.

    Args:
        tables: The tables, as of now.
        command: The claim.
        append_time_ms: The append time that an entry would have now.
    """
    known = tables.producer_names.get(command.name)
    if known is None or command.epoch != known.epoch or command.then is not None:
        return None
    if tables.expiry.now_ms - known.used_time_ms >= USED_TIME_STEP_MS:
        return None
    if append_time_ms - tables.expiry.append_time_ms >= USED_TIME_STEP_MS or len(command.stamp) > STAMP_BYTES_MAX:
        return None
    if command.replaces == known.stamp and command.stamp != known.stamp:
        return None
    return ProducerInitialized(tables.cluster.revision, known.producer_id, known.epoch, known.stamp)


def forget_producer_names(tables: MetadataTables, command: ForgetProducerNames) -> Done | Rejected:
    """Remove the names that nobody has used since the command's time."""
    if len(command.names) > FORGOTTEN_NAMES_MAX:
        return Rejected(codes.INVALID_ARGUMENT, f"at most {FORGOTTEN_NAMES_MAX} names are removed together")
    for name in command.names:
        known = tables.producer_names.get(name)
        if known is not None and known.used_time_ms <= command.used_until_ms:
            tables.producer_names.forget(name)
    tables.update_cluster()
    return Done(tables.cluster.revision)


def _first_batch_epoch(epoch: int, *, is_asked_for: bool) -> int:
    """Return the lowest epoch of the batches that are sent under a name's epoch."""
    return epoch if is_asked_for or epoch >> NAME_EPOCH_SHIFT else epoch << NAME_EPOCH_SHIFT
