"""Show the messages of a queue partition without leasing them.

Most messages are on disk alone. A read of their rows reaches the loop while the machine still knows everything that was written since the
read began (`Replica.read_rows`). So the rows are combined with the messages in memory in the same call, and the result is the
state of one moment. This module changes nothing, neither messages nor the content of the memory.

A read is of no use if an entry is half applied when its rows arrive. Then no further entry is applied until the look has succeeded: a
machine that reads for every entry would otherwise let it wait without end. Such a look is short and their number is bounded, so that browsers do
not hold up the work of the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from copy import copy
from functools import partial
from heapq import nsmallest
from itertools import chain, islice
from typing import Final, NamedTuple, TypeVar

import msgspec
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.queue import rows as keys
from raftmq.fsm.queue.ids import IdRow
from raftmq.fsm.queue.jobs import is_in_subtrees
from raftmq.fsm.queue.message import DEAD, DELAYED, LEASED, LINED, READY, Message, decode_message
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.point_table import Unread
from raftmq.fsm.row_reads import RowRange, RowsFound, RowsNeeded
from raftmq.fsm.tables import Row
from raftmq.proto import queue_pb2 as pb

T = TypeVar("T")

STATES: Final = (DELAYED, LINED, READY, LEASED, DEAD)
"""The order in which messages are listed: a message that goes its usual way during a listing is listed twice rather than never."""
SECTIONS_READ_MAX: Final = 16
"""Sections of a listing that one read covers."""
ROWS_READ_MAX: Final = 1_000
"""Rows of a section that one read covers, whether or not they match."""
READS_MAX: Final = 10
"""Reads for one page. A page without matches then ends with a cursor."""
HOLDING_READS_MAX: Final = 1
"""Reads for one page while entries wait for it: about 10 ms."""
HOLDERS_MAX: Final = 8
"""Looks for which entries wait, or that wait for their turn to hold them up. Further ones are refused."""
_HOLDERS_RETRY_MS: Final = 100
TENANT_SECTIONS_MAX: Final = 256
"""Tenants whose ready messages are looked for one by one. For more, all ready messages are looked at."""
CURSOR_BYTES_MAX: Final = 64
LOOKUPS_MAX: Final = 5
"""Attempts to find a message that moves while it is looked for."""
TENANTS_READ_MAX: Final = 1_000
"""Tenants whose next message is read to find the oldest one."""
HEAD_ROWS_MAX: Final = 16
"""Rows that are read to find a tenant's next message: those of messages that have moved on are skipped."""
_TAGS: Final = {
    DELAYED: keys.DELAYED_ROWS,
    LINED: keys.LINE_ROWS,
    READY: keys.READY_ROWS,
    LEASED: keys.LEASED_ROWS,
    DEAD: keys.DEAD_ROWS,
}
_ORDER: Final = {_TAGS[state]: place for place, state in enumerate(STATES)}
_Listed = tuple[bytes, Message]
"""A message and the key of its home row, which is its place in a listing."""
_ID_DECODER = msgspec.msgpack.Decoder(IdRow)


class Wanted(NamedTuple):
    """The messages to list."""

    states: tuple[int, ...] = STATES
    tenant: str = ""
    """A subtree."""
    enqueued_before_ms: int = 0
    """0: any."""


class Page(NamedTuple):
    """Messages as of one moment, in the order of `STATES`, and of their leasing within a state."""

    messages: tuple[Message, ...]
    """Copies."""
    tenants: tuple[str, ...]
    places: tuple[bytes, ...]
    """The cursor after each of them."""
    cursor: bytes
    """The place of the last one that was looked at. Empty: there are no more."""


class _Section(NamedTuple):
    """Messages of one state whose rows are neighbors."""

    state: int
    first_key: bytes
    end_key: bytes


class _MissedError(Exception):
    """The machine was not at rest when it was looked at."""


class QueueViews:
    """The views of one partition, on its leader. A caller bounds the time."""

    def __init__(self, replica: Replica[QueuePartition]) -> None:
        self._replica = replica
        self._holders = 0
        """Looks that hold entries up, or wait to do so."""

    # ------------------------------------------------------------------------------------------------------------ listing

    async def page(self, wanted: Wanted, cursor: bytes, limit: int) -> Page:
        """Return the next messages after a cursor, at most `limit`. Empty cursor: the first ones.

        Raises:
            RequestError: INVALID_ARGUMENT for a cursor that no page had. NOT_LEADER, NO_LEADER. THROTTLED while many others hold entries up.
        """
        find = partial(self._find_page, wanted, cursor, limit)
        return await self._look(partial(find, READS_MAX), partial(find, HOLDING_READS_MAX))

    async def _find_page(self, wanted: Wanted, cursor: bytes, limit: int, reads_max: int) -> Page:
        for _ in range(reads_max):
            self._at_rest()
            generation = self._replica.state_machine.state.scalars.generation
            sections = self._sections(wanted, generation, cursor)
            if not sections:
                break
            ranges = [RowRange(one.first_key, one.end_key, ROWS_READ_MAX) for one in sections[:SECTIONS_READ_MAX]]
            page = await self._read(ranges, partial(self._take, generation, sections, wanted, limit))
            if page is None:
                continue  # everything was purged during the read
            if page.messages or not page.cursor:
                return page
            cursor = page.cursor
        else:
            return Page((), (), (), cursor)
        return Page((), (), (), b"")

    def _sections(self, wanted: Wanted, generation: int, cursor: bytes) -> list[_Section]:
        """Return the sections of a listing after a cursor, in their order."""
        found: list[_Section] = []
        if cursor and (cursor[0] not in _ORDER or len(cursor) > CURSOR_BYTES_MAX):
            raise RequestError(pb.INVALID_ARGUMENT, "the cursor is not that of a page: begin without one")
        after = keys.key_of_location(generation, cursor) if cursor else b""
        for state in STATES:
            if state not in wanted.states:
                continue
            tag = _TAGS[state]
            if cursor and _ORDER[tag] < _ORDER[cursor[0]]:
                continue
            for prefix in self._prefixes(state, generation, wanted.tenant):
                first, end = prefix, keys.after(prefix)
                if cursor and tag == cursor[0]:
                    if end <= after:
                        continue
                    first = max(first, after + b"\0")
                found.append(_Section(state, first, end))
        return found

    def _prefixes(self, state: int, generation: int, tenant: str) -> list[bytes]:
        """Return the beginnings of the keys of a state's messages: one for each tenant if they are few."""
        if state == READY and tenant:
            tenants = self._replica.state_machine.state.tenants.by_path
            numbers = sorted(one.number for path, one in tenants.items() if is_in_subtrees(path, (tenant,)))
            if len(numbers) <= TENANT_SECTIONS_MAX:
                return [keys.ready_prefix(generation, number) for number in numbers]
        return [keys.table_prefix(_TAGS[state], generation)]

    def _take(
        self, generation: int, sections: Sequence[_Section], wanted: Wanted, limit: int, found: RowsFound
    ) -> Page | None:
        """Combine rows with the messages in memory. Runs on the loop, between entries. None: the rows are of an older generation."""
        if generation != self._replica.state_machine.state.scalars.generation:
            return None
        taken: list[_Listed] = []
        held: dict[int, list[_Listed]] = {}
        for section, rows in zip(sections, found, strict=False):
            if section.state not in held:
                held[section.state] = self._held(section.state, wanted)
            is_cut = len(rows) >= ROWS_READ_MAX
            end = rows[-1][0] if is_cut else section.end_key
            missing = limit - len(taken)
            within = [one for one in held[section.state] if section.first_key <= one[0] <= end]
            matching = nsmallest(missing, chain(within, self._on_disk(rows, wanted)), key=_key_of)
            taken += matching
            if len(matching) == missing:
                return self._page(taken, matching[-1][0])
            if is_cut:
                return self._page(taken, end)
        return self._page(taken, sections[len(found)].first_key if len(sections) > len(found) else b"")

    def _held(self, state: int, wanted: Wanted) -> list[_Listed]:
        """Return the matching messages of a state that are in memory."""
        generation, store = (
            self._replica.state_machine.state.scalars.generation,
            self._replica.state_machine.state.store,
        )
        chosen = (m for m in store.messages.values() if m.state == state and self.is_wanted(m, wanted))
        return [(keys.home_key(generation, m), m) for m in chosen]

    def _on_disk(self, rows: Sequence[Row], wanted: Wanted) -> Iterator[_Listed]:
        """Yield the matching messages of rows, except those of which memory knows more."""
        store = self._replica.state_machine.state.store
        for key, value in rows:
            m = decode_message(key, value)
            if not store.is_known(m.sequence) and self.is_wanted(m, wanted):
                yield key, m

    def is_wanted(self, m: Message, wanted: Wanted) -> bool:
        """Return whether a message of one of the wanted states matches in everything else."""
        if wanted.enqueued_before_ms and m.enqueued_at >= wanted.enqueued_before_ms:
            return False
        tenants = self._replica.state_machine.state.tenants.by_number
        return not wanted.tenant or is_in_subtrees(tenants[m.tenant].path, (wanted.tenant,))

    def _page(self, taken: Sequence[_Listed], last_key: bytes) -> Page:
        by_number = self._replica.state_machine.state.tenants.by_number
        return Page(
            tuple(copy(m) for _, m in taken),
            tuple(by_number[m.tenant].path for _, m in taken),
            tuple(keys.location_value(key) for key, _ in taken),
            keys.location_value(last_key) if last_key else b"",
        )

    # ------------------------------------------------------------------------------------------------------------- lookup

    async def by_id(self, id_: bytes) -> Message | None:
        """Return a copy of the unfinished message that has an id, or None. Raises as `page`."""
        return await self._look(partial(self._find_by_id, id_))

    async def _find_by_id(self, id_: bytes) -> Message | None:
        self._at_rest()
        ids = self._replica.state_machine.state.ids
        row = ids.look_up(id_)
        if row is Unread.UNREAD:
            generation = self._replica.state_machine.state.scalars.generation
            range_ = keys.point(keys.named_key(keys.IDS, generation, id_))
            row = await self._read([range_], lambda found: self._id_row(id_, found[0]))
        return None if row is None or row.is_finished else await self._find_by_sequence(row.sequence)

    def _id_row(self, id_: bytes, rows: Sequence[Row]) -> IdRow | None:
        row = self._replica.state_machine.state.ids.look_up(id_)
        if row is Unread.UNREAD:
            return _ID_DECODER.decode(rows[0][1]) if rows else None
        return row

    async def by_sequence(self, sequence: int) -> Message | None:
        """Return a copy of the unfinished message with this sequence, or None. Raises as `page`."""
        return await self._look(partial(self._find_by_sequence, sequence))

    async def _find_by_sequence(self, sequence: int) -> Message | None:
        for _ in range(LOOKUPS_MAX):
            self._at_rest()
            known = self._in_memory(sequence)
            if known is not Unread.UNREAD:
                return known
            generation = self._replica.state_machine.state.scalars.generation
            (location,) = await self._read([keys.point(keys.location_key(generation, sequence))], lambda found: found)
            if not location:
                if self._in_memory(sequence) is Unread.UNREAD:
                    return None
                continue
            home = keys.point(keys.key_of_location(generation, location[0][1]))
            found = await self._read([home], lambda found: self._message(sequence, found[0]))
            if found is not Unread.UNREAD:
                return found
        raise RequestError(
            pb.THROTTLED, f"message {sequence} changes too fast to be shown: try again", retry_after_ms=50
        )

    def _message(self, sequence: int, rows: Sequence[Row]) -> Message | Unread | None:
        known = self._in_memory(sequence)
        if known is Unread.UNREAD and rows:
            found = decode_message(*rows[0])
            return found if found.sequence == sequence else known
        return known

    def _in_memory(self, sequence: int) -> Message | Unread | None:
        """Return a copy of a message as memory knows it, None if it is finished, or `UNREAD`."""
        state = self._replica.state_machine.state
        message = state.store.messages.get(sequence)
        if message is not None:
            return copy(message)
        is_gone = sequence < state.scalars.purged_sequence or state.store.is_known(sequence)
        return None if is_gone else Unread.UNREAD

    def tenant_of(self, message: Message) -> str:
        """Return the tenant of a message that was just found."""
        tenant = self._replica.state_machine.state.tenants.by_number.get(message.tenant)
        return "" if tenant is None else tenant.path

    async def oldest_unread(self) -> int | None:
        """Return since when the oldest of the messages is ready that come next and are on disk alone, of up to `TENANTS_READ_MAX` tenants."""
        return await self._look(self._find_oldest_unread)

    async def _find_oldest_unread(self) -> int | None:
        self._at_rest()
        state = self._replica.state_machine.state
        unread = (one.number for one in state.tenants.living() if one.ready and self._is_unread(one.number))
        prefixes = [keys.ready_prefix(state.scalars.generation, number) for number in islice(unread, TENANTS_READ_MAX)]
        if not prefixes:
            return None
        ranges = [RowRange(prefix, keys.after(prefix), HEAD_ROWS_MAX) for prefix in prefixes]
        return await self._read(ranges, partial(self._oldest, state.scalars.generation))

    def _is_unread(self, tenant: int) -> bool:
        window = self._replica.state_machine.state.store.ready.get(tenant)
        return window is None or window.is_unread()

    def _oldest(self, generation: int, found: RowsFound) -> int | None:
        if generation != self._replica.state_machine.state.scalars.generation:
            return None
        return min((m.ready_since for rows in found for _, m in self._on_disk(rows, Wanted())), default=None)

    # -------------------------------------------------------------------------------------------------------------- reads

    async def _look(self, look: Callable[[], Awaitable[T]], look_again: Callable[[], Awaitable[T]] | None = None) -> T:
        """Return what a look at the machine finds. If entries disturb it, they wait for the second try (`look_again`, if it differs)."""
        try:
            return await look()
        except _MissedError:
            pass
        if self._holders >= HOLDERS_MAX:
            raise RequestError(
                pb.THROTTLED,
                f"{HOLDERS_MAX} requests that show messages wait for this partition's work already: try again",
                retry_after_ms=_HOLDERS_RETRY_MS,
            )
        self._holders += 1
        try:
            async with self._replica.applier.held():
                return await (look_again or look)()
        finally:
            self._holders -= 1

    def _at_rest(self) -> None:
        """Raise unless this replica leads and no entry is half applied."""
        self._replica.require_leader()
        if self._replica.applier.is_suspended:
            raise _MissedError

    async def _read(self, ranges: Sequence[RowRange], take: Callable[[RowsFound], T]) -> T:
        """Read rows and return the result of `take`, which gets them between two entries. Raises if the replica is closed in the meantime."""
        replica = self._replica
        read: asyncio.Future[tuple[T] | None] = asyncio.get_running_loop().create_future()

        def on_found(found: RowsFound) -> None:
            if not read.done():
                read.set_result(None if replica.applier.is_suspended else (take(found),))

        replica.read_rows(RowsNeeded(tuple(ranges)), on_found)
        while not read.done():  # rows of a closed replica never arrive
            if replica.is_closed:
                raise replica.not_leader()
            await asyncio.wait((read, replica.wait_progress()), return_when=asyncio.FIRST_COMPLETED)
        result = read.result()
        if result is None:
            raise _MissedError
        return result[0]


def _key_of(listed: _Listed) -> bytes:
    return listed[0]
