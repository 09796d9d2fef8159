"""Sessions of consumers: they number their requests, and the last results are remembered, so that a repeat gets the same answer.

A session is forgotten when it made no request for a while by queue time. Its leases are not affected: they end by their own deadlines.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from raftmq.fsm.queue.limits import SESSION_EXPIRY_MS, SESSION_REQUESTS, SESSIONS_MAX
from raftmq.fsm.queue.results import Code, ItemResult, Leased, Refused, Settled
from raftmq.fsm.queue.rows import SESSIONS
from raftmq.fsm.row_decoders import row_decoder
from raftmq.fsm.tables import DirtyRow, Row, encode_value, number_key, number_of_key


class Session(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A session's row."""

    active_at: int
    """Queue time of its last request."""
    requests: list[tuple[int, Leased | Settled]]
    """The last requests and their results, by ascending number."""


_decode_row = row_decoder(Session)


class SessionTable:
    """Hold the sessions of one partition, the longest idle one first."""

    def __init__(self) -> None:
        self.tag = SESSIONS
        self._sessions: dict[int, Session] = {}
        self._dirty: set[int] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, number: int, now: int) -> bool:
        """Create a session, unless there are too many. Return whether it was created."""
        if len(self._sessions) >= SESSIONS_MAX:
            return False
        self._sessions[number] = Session(now, [])
        self._dirty.add(number)
        return True

    def close(self, number: int) -> None:
        """Forget a session, if it exists."""
        if self._sessions.pop(number, None) is not None:
            self._dirty.add(number)

    def answer(self, number: int, request: int) -> ItemResult | None:
        """Return the answer to a request that must not be executed, or None: execute it, and call `remember`."""
        session = self._sessions.get(number)
        if session is None:
            return Refused(Code.UNKNOWN_SESSION)
        for known, result in session.requests:
            if known == request:
                return result
        if len(session.requests) == SESSION_REQUESTS and request < session.requests[0][0]:
            return Refused(Code.STALE_REQUEST)
        return None

    def remember(self, number: int, request: int, result: Leased | Settled, now: int) -> None:
        """Record the result of an executed request."""
        session = self._sessions.pop(number)
        self._sessions[number] = session
        session.active_at = now
        session.requests.append((request, result))
        session.requests.sort(key=_request_number)
        del session.requests[:-SESSION_REQUESTS]
        self._dirty.add(number)

    def expire(self, now: int) -> None:
        """Forget the sessions that were idle for too long."""
        sessions = self._sessions
        while sessions:
            number = next(iter(sessions))
            if sessions[number].active_at + SESSION_EXPIRY_MS > now:
                return
            self.close(number)

    # --------------------------------------------------------------------------------------------------------------- rows

    @property
    def dirty_count(self) -> int:
        """Return the number of changed rows."""
        return len(self._dirty)

    def take_dirty(self) -> Iterator[DirtyRow]:
        """Return the rows changed since the last call."""
        dirty, self._dirty = self._dirty, set()
        for number in dirty:
            session = self._sessions.get(number)
            yield number_key(self.tag, number), None if session is None else encode_value(session)

    def rows(self) -> Iterator[Row]:
        """Return all rows by number."""
        for number in sorted(self._sessions):
            yield number_key(self.tag, number), encode_value(self._sessions[number])

    def load(self, key: bytes, value: bytes) -> None:
        """Load a row. `finish_loading` must follow."""
        self._sessions[number_of_key(key)] = _decode_row(value)

    def finish_loading(self) -> None:
        """Restore the order. Sessions that were active at the same time expire together, so their order does not matter."""
        self._sessions = dict(sorted(self._sessions.items(), key=lambda item: (item[1].active_at, item[0])))

    def clear(self) -> None:
        """Forget all sessions."""
        self._sessions.clear()
        self._dirty.clear()


def _request_number(request: tuple[int, Leased | Settled]) -> int:
    return request[0]
