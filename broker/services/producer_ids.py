"""Assign producer ids: anonymous ones from a block of this node, named ones through the metadata group.

A block is allocated by one metadata command and never returned: ids have 63 bits, so an unused one is no loss.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.replica.commands import refused
from raftmq.broker.services.call import Call
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import Locator
from raftmq.broker.services.metadata_leader import MetadataLeader, on_metadata_leader
from raftmq.fsm.feature_levels import SECOND_CLAIM_LEVEL, UNITED_STAMPS_LEVEL
from raftmq.fsm.metadata_commands import (
    AllocateProducerIds,
    Done,
    ForgetProducerNames,
    InitNamedProducer,
    ProducerIdBlock,
    ProducerInitialized,
    StampClaim,
)
from raftmq.fsm.metadata_producers import FORGOTTEN_NAMES_MAX
from raftmq.fsm.producer_names import NAMED_PRODUCERS_MAX, USED_TIME_ERROR_MS
from raftmq.fsm.tables import KEY_TEXT_BYTES_MAX, is_key_text
from raftmq.proto import queue_pb2 as pb

PRODUCER_IDS_PER_BLOCK = 1000
"""Producer ids per block: one metadata entry serves a thousand producers."""
SHOWN_NAMES_MAX: Final = 1000
"""Names in the answer about removed names."""
RESERVED_PREFIX: Final = "~"
"""Brokers write as producers whose names begin with it. Clients must not fence them."""
MARKS_PREFIX: Final = "spark-batches/"
"""The marks of Spark's atomic batches have names that begin with it. Without them, readers would see a part of a batch that is open."""
KEPT_PREFIXES: Final = (RESERVED_PREFIX, MARKS_PREFIX)
"""Names that begin with one of these are removed only on a request that names the prefix."""


class ProducerIds:
    """Assigns the producer ids of one node."""

    def __init__(self, host: ServiceHost, locator: Locator[Partition], leader: MetadataLeader) -> None:
        self._host = host
        self._locator = locator
        self.leader = leader
        self._next_id = 0
        self._ids_left = 0
        self._refill = asyncio.Lock()

    async def init_producer(self, request: pb.InitProducerRequest, call: Call) -> pb.InitProducerResponse:
        """Return an id for an anonymous producer (epoch 0), or the id and epoch of a named one.

        Raises:
            RequestError: INVALID_ARGUMENT; PRODUCER_FENCED for an epoch below the name's; as `MetadataLeader.run`.
        """
        if request.HasField("replaces") and not request.HasField("epoch"):
            raise RequestError(pb.INVALID_ARGUMENT, "a request that replaces a stamp must name the epoch")
        if request.HasField("then") and not request.HasField("epoch"):
            raise RequestError(pb.INVALID_ARGUMENT, "a request with a second claim must name the epoch of the first")
        if request.stamp and not request.HasField("name"):
            raise RequestError(pb.INVALID_ARGUMENT, "only a producer with a name can have a stamp")
        if not request.HasField("name"):
            if request.HasField("epoch"):
                raise RequestError(pb.INVALID_ARGUMENT, "only a producer with a name can request an epoch")
            if self._ids_left:
                return self._take()
        else:
            _require_name(request.name, is_of_broker=call.is_forwarded)
            if request.HasField("then"):
                # Brokers make no second claims, and one of an older version forwards a client's without having looked at it.
                _require_name(request.then.name, is_of_broker=False)
                if request.then.shared_bytes > len(request.then.stamp):
                    raise RequestError(pb.INVALID_ARGUMENT, "a stamp cannot share more bytes than it has")
        return await self._init_on_leader(request, call)

    async def broker_producer(self, name: str, call: Call) -> int:
        """Return the id behind a reserved name, of which this broker chooses epochs and sequences. Raises as `init_producer`."""
        request = pb.InitProducerRequest(name=RESERVED_PREFIX + name, epoch=0)
        return (await self._init_on_leader(request, call)).producer_id

    def _take(self) -> pb.InitProducerResponse:
        producer_id = self._next_id
        self._next_id += 1
        self._ids_left -= 1
        return pb.InitProducerResponse(producer_id=producer_id, epoch=0)

    @on_metadata_leader
    async def forget_names(self, request: pb.ForgetProducerNamesRequest, call: Call) -> pb.ForgetProducerNamesResponse:
        """Remove names of producers that nobody has used for the given time, or count them.

        Names that begin with one of `KEPT_PREFIXES` are removed only if the prefix begins with it.

        Raises:
            RequestError: as `MetadataLeader.execute`. If the outcome is unknown, a part of the names may have been removed.
        """
        metadata = self._host.metadata.state_machine
        unused_ms = request.unused_ms and request.unused_ms + USED_TIME_ERROR_MS
        used_until_ms = metadata.expiry_now_ms - unused_ms
        found = metadata.unused_producer_names(request.prefix, unused_ms)
        kept = tuple(prefix for prefix in KEPT_PREFIXES if not request.prefix.startswith(prefix))
        found = [row for row in found if not row[0].startswith(kept)]
        revision = metadata.revision
        if not request.dry_run:
            for start in range(0, len(found), FORGOTTEN_NAMES_MAX):
                names = tuple(name for name, _, _ in found[start : start + FORGOTTEN_NAMES_MAX])
                try:
                    done = await self.leader.execute(ForgetProducerNames(names, used_until_ms), Done, call.deadline)
                except RequestError as error:
                    if start:
                        error.detail.outcome = pb.UNKNOWN_OUTCOME
                    raise
                revision = done.revision
        shown = found[: min(request.names_max, SHOWN_NAMES_MAX)]
        return pb.ForgetProducerNamesResponse(
            metadata_revision=revision,
            forgotten_count=len(found),
            left_count=metadata.producer_name_count,
            limit=NAMED_PRODUCERS_MAX,
            names=[pb.ProducerNameView(name=name, epoch=epoch, unused_ms=unused) for name, epoch, unused in shown],
        )

    @on_metadata_leader
    async def _init_on_leader(self, request: pb.InitProducerRequest, call: Call) -> pb.InitProducerResponse:
        if not request.HasField("name"):
            return await self._take_refilled(call)
        epoch = request.epoch if request.HasField("epoch") else None
        replaces = request.replaces if request.HasField("replaces") else None
        command = InitNamedProducer(request.name, epoch, request.stamp, replaces)
        level = self._host.metadata.state_machine.feature_level
        second = _second_claim(request, level)
        if second is None:
            result = await self._claim(command, call)
        elif level >= SECOND_CLAIM_LEVEL:
            both = msgspec.structs.replace(command, then=second)
            result = await self.leader.execute(both, ProducerInitialized, call.deadline)
        else:
            result = await self._claim_both(command, second, call)
        answer = pb.InitProducerResponse(
            producer_id=result.producer_id,
            epoch=result.epoch,
            stamp=result.stamp,
            metadata_revision=result.revision,
            time_ms=self._host.now_ms(),
        )
        if isinstance(result.then, ProducerInitialized):
            answer.then.stamp = result.then.stamp
        elif result.then is not None:
            answer.then.error.CopyFrom(refused(result.then).detail)
        return answer

    async def _claim(self, command: InitNamedProducer, call: Call) -> ProducerInitialized:
        """Claim a name. A claim that would change nothing, as most of those that read a stamp, is no entry of the log."""
        if self._standing(command) is not None:
            await self._locator.confirm_metadata(call.deadline)
            standing = self._standing(command)
            if standing is not None:
                return standing
        return await self.leader.execute(command, ProducerInitialized, call.deadline)

    def _standing(self, command: InitNamedProducer) -> ProducerInitialized | None:
        return self._host.metadata.state_machine.standing_claim(command, self._host.now_ms())

    async def _claim_both(self, command: InitNamedProducer, second: StampClaim, call: Call) -> ProducerInitialized:
        """Claim two stamps by two commands, in a cluster with a broker that does not know one for both."""
        result = await self.leader.execute(command, ProducerInitialized, call.deadline)
        if result.stamp != command.stamp:
            return result
        command = InitNamedProducer(second.name, second.epoch, second.stamp, second.replaces)
        then = await self.leader.execute(command, ProducerInitialized, call.deadline)
        return msgspec.structs.replace(result, then=then, revision=then.revision)

    async def _take_refilled(self, call: Call) -> pb.InitProducerResponse:
        async with self._refill:  # a thousand producers that start simultaneously need one block, not a thousand
            if not self._ids_left:
                block = await self.leader.execute(
                    AllocateProducerIds(PRODUCER_IDS_PER_BLOCK), ProducerIdBlock, call.deadline
                )
                self._next_id, self._ids_left = block.first, block.count
            return self._take()


def _require_name(name: str, *, is_of_broker: bool) -> None:
    """Raise INVALID_ARGUMENT if no producer may have the name, or if only brokers may have it and a client asks."""
    if not is_key_text(name):
        raise RequestError(pb.INVALID_ARGUMENT, f"a producer's name must have 1 to {KEY_TEXT_BYTES_MAX} bytes")
    if name.startswith(RESERVED_PREFIX) and not is_of_broker:
        raise RequestError(
            pb.INVALID_ARGUMENT,
            f"names of producers that begin with {RESERVED_PREFIX} are reserved for brokers, but the name is {name!r}",
        )


def _second_claim(request: pb.InitProducerRequest, level: int) -> StampClaim | None:
    """Return the second claim as far as all brokers of this feature level know it."""
    if not request.HasField("then"):
        return None
    then = request.then
    shared_bytes = then.shared_bytes if level >= UNITED_STAMPS_LEVEL else 0
    replaces = then.replaces if then.HasField("replaces") else None
    return StampClaim(then.name, then.epoch, then.stamp, replaces, shared_bytes)
