"""Which records retention deletes: a pure decision of the leader, carried out by a replicated `TrimLog`.

Reads no clock and no log: the leader hands in the time and the headers, and proposes `TrimLog(before_offset=target)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from raftmq.fsm.topic_config import TopicConfig
from raftmq.raft.entry import EntryHeader

HEADERS_PER_DECISION_MAX: Final = 10_000
"""Entries one decision looks at, a few milliseconds; the next one goes on from there."""


def trim_target(
    config: TopicConfig,
    now_ms: int,
    log_start_offset: int,
    log_bytes: int,
    oldest_headers: Iterable[EntryHeader],
    headers_max: int = HEADERS_PER_DECISION_MAX,
) -> int | None:
    """The offset to trim before, or None if nothing is due.

    Whole entries go, oldest first: those older than `retention_ms` at `now_ms`, and those without which at least
    `retention_bytes` remain. An idle topic's records go, too: nothing here asks for newer ones.

    Args:
        config: the topic's configuration in force.
        now_ms: the leader's time. Entries carry append times that never decrease, so the first young one ends the search.
        log_start_offset: where the log starts now.
        log_bytes: payload bytes of the applied entries from `log_start_offset` on; must be what `payload_bytes` adds up to.
        oldest_headers: applied entries in log order, of any kind, from the one that holds `log_start_offset` on. Read lazily
            and only as far as needed. Must end at the applied index: an uncommitted entry is nobody's to delete.
        headers_max: entries to look at.
    """
    if config.retention_ms < 0 and config.retention_bytes < 0:
        return None
    oldest_kept_ms = now_ms - config.retention_ms if config.retention_ms >= 0 else None
    target = log_start_offset
    for count, header in enumerate(oldest_headers, 1):
        if header.record_count > 0 and header.next_offset > log_start_offset:
            is_old = oldest_kept_ms is not None and header.append_time_ms < oldest_kept_ms
            is_surplus = 0 <= config.retention_bytes <= log_bytes - header.payload_bytes
            if not is_old and not is_surplus:
                break
            log_bytes -= header.payload_bytes
            target = header.next_offset
        if count >= headers_max:
            break
    return target if target > log_start_offset else None
