"""Provide a group's log as its core reads it: recent entries from memory, older ones fetched by a thread, single headers.

Reading entries must not block the loop: entries that are not in memory are fetched, and the core is told to ask again. Invariant: no
fetched entry is served after the log may have changed under it (its suffix replaced, its prefix deleted). Entries that are added after
the fetched ones change nothing: otherwise no follower would catch up while records keep arriving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from raftmq.broker.replica.log_marks import LogMarks
from raftmq.broker.replica.recent_entries import RecentEntries, RecentEntriesBudget
from raftmq.raft.entry import Entry, EntryHeader, fitting
from raftmq.raft.log_view import LogView
from raftmq.storage.errors import DamagedReplicaError, LogRangeError, ReplicaClosedError, StorageUnavailableError
from raftmq.storage.log_store import LogStore, ReplicaKey
from raftmq.types import LogIndex

log = structlog.get_logger(__name__)

CATCH_UP_BYTES = 4 * 1024 * 1024
"""Bytes of one fetch for a peer that is behind the recent entries: as much as eight appends."""
UNASKED_SECONDS = 5.0
"""Time after which unused fetched entries are dropped: their peer has disconnected, and there are many groups."""
RETRY_SECONDS = 0.1
"""The pause before a temporarily unreadable file (no memory, no descriptors) is read again."""

Fetch = Callable[[Callable[..., tuple[Entry, ...]], ReplicaKey, LogIndex, LogIndex, int], Awaitable[tuple[Entry, ...]]]
"""Runs a blocking read on the reader threads."""


class ReplicaLog(LogView):
    """A group's log. It is created before the core, which reads headers during its creation."""

    def __init__(
        self,
        key: ReplicaKey,
        store: LogStore,
        loop: asyncio.AbstractEventLoop,
        in_thread: Fetch,
        recent_budget: RecentEntriesBudget,
    ) -> None:
        self.recent = RecentEntries(recent_budget)
        self.marks = LogMarks()
        self.on_fetched: Callable[[DamagedReplicaError | None], None] | None = None
        """Called when a fetch ended, with an error if a row is damaged. Set by the replica."""
        self._key = key
        self._store = store
        self._loop = loop
        self._in_thread = in_thread
        self._fetched: tuple[Entry, ...] = ()
        self._is_used_up = False
        """Whether the last fetched entry was used. The fetched entries are dropped with the next append."""
        self._asked_at = 0.0
        """Loop time at which the fetched entries arrived, or were last used."""
        self._fetching_through = LogIndex(0)
        """The last entry that the present fetch may return."""
        self._fetching: asyncio.Task[None] | None = None
        self._generation = 0

    def entries(self, first: LogIndex, last: LogIndex, bytes_max: int) -> tuple[Entry, ...] | None:
        """Return recent or fetched entries as `LogView.entries`. None starts a fetch."""
        found = self.recent.slice(first, last, bytes_max)
        if found is not None:
            return found
        fetched = self._fetched
        if fetched and fetched[0].index <= first <= fetched[-1].index:
            fits = fitting(fetched[first - fetched[0].index : last - fetched[0].index + 1], bytes_max)
            self._is_used_up |= fits[-1] is fetched[-1]
            self._asked_at = self._loop.time()
            return fits
        if self._fetching is None:
            self._fetching_through = last
            self._fetching = self._loop.create_task(self._fetch(first, last))
            self._fetching.add_done_callback(_say_what_failed)
        return None

    async def _fetch(self, first: LogIndex, last: LogIndex) -> None:
        generation = self._generation
        damage: DamagedReplicaError | None = None
        try:
            found = await self._in_thread(self._store.entries, self._key, first, last, CATCH_UP_BYTES)
            if generation == self._generation:
                self._fetched, self._is_used_up, self._asked_at = found, False, self._loop.time()
        except DamagedReplicaError as error:
            damage = error
        except (LogRangeError, ReplicaClosedError):
            pass  # truncated or closed in the meantime: the core asks again if it still needs them
        except StorageUnavailableError:
            await asyncio.sleep(RETRY_SECONDS)  # the core asks again immediately, so without the pause this would spin
        except Exception:
            await asyncio.sleep(RETRY_SECONDS)
            raise
        finally:
            self._fetching = None
            if self.on_fetched is not None:
                self.on_fetched(damage)

    def header(self, index: LogIndex) -> EntryHeader:
        """Return a header as `LogView.header`: from memory, else read on the loop (rare: only after a truncation)."""
        entry = self.recent.get(index)
        if entry is None:
            return self._store.header(self._key, index)
        return entry.header()

    def read_header(self, index: LogIndex) -> EntryHeader:
        """Return the header of a durable entry from the store. It may wait for a file to be replaced, so do not call it on the loop."""
        return self._store.header(self._key, index)

    # ------------------------------------------------------------------------------------------------ changes

    def append(self, entries: tuple[Entry, ...]) -> None:
        """Replace the log's suffix, from the first of these entries on, by them."""
        self.recent.append(entries)
        self.marks.append(entries)
        first, fetched = entries[0].index, self._fetched
        if self._fetching is not None and first <= self._fetching_through:
            self._generation += 1
        if fetched and (
            self._is_used_up or first <= fetched[-1].index or self._loop.time() - self._asked_at > UNASKED_SECONDS
        ):
            self._fetched = ()

    def forget_through(self, index: LogIndex) -> None:
        """Forget entries up to `index`, after which the log now starts."""
        self.recent.evict_through(index)
        self._forget_fetched()

    def clear(self) -> None:
        """Forget all entries, because the log was replaced or closed."""
        self.recent.clear()
        self.marks.clear()
        self._forget_fetched()

    def _forget_fetched(self) -> None:
        self._fetched = ()
        self._generation += 1


def _say_what_failed(fetch: asyncio.Task[None]) -> None:
    """Log the failure of a fetch, which no caller awaits. An unforeseen one (a shutdown of the readers) only delays the peer."""
    if not fetch.cancelled() and (error := fetch.exception()) is not None:
        log.warning("catch_up_read_failed", reason=repr(error))
