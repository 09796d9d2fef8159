"""`VoteDurable`, `AckDurable`, `RequestDurable`: a vote, an acknowledgement and a vote request leave only when the disk holds the values
in them (thesis 3.8).

The checks read the rows on the simulated disk, not the node's own belief.
"""

from __future__ import annotations

from raftmq.raft.entry import EntryHeader
from raftmq.raft.messages import AppendResponse, VoteRequest, VoteResponse
from raftmq.storage.entry_codec import CodecError, decode_row, decode_row_fields, encode_key
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.replica_codec import META_KEY, ReplicaMeta, decode_meta

from sim.cluster.world.disk import Disk
from sim.core.invariants.violation import InvariantViolation
from sim.core.invariants.votes import check_request_durable

_DECODED: dict[bytes, ReplicaMeta] = {}
"""Decoded rows, since several answers leave between two writes."""
_DECODED_MAX = 1000


def durable_meta(disk: Disk, key: ReplicaKey) -> ReplicaMeta | None:
    """Return a replica's meta row on the disk, or None if the row is damaged or the replica does not exist."""
    file = disk.files.get(key)
    row = file.tables["meta"].rows.get(META_KEY) if file is not None else None
    if row is None:
        return None
    decoded = _DECODED.get(row)
    if decoded is None:
        if len(_DECODED) >= _DECODED_MAX:
            _DECODED.clear()
        try:
            decoded = _DECODED[row] = decode_meta(row)
        except CodecError:
            return None
    return decoded


def durable_term(disk: Disk, key: ReplicaKey, meta: ReplicaMeta, index: int) -> int | None:
    """Return the term of the durable log at an index, or None if the log ends before it. Raises CodecError if a fault damaged the row."""
    if index == meta.position.index:
        return meta.position.term
    row = disk.files[key].tables["log"].rows.get(encode_key(index))
    if row is None or index > meta.last_index:
        return None
    return decode_row_fields(index, row).term


def stored_entries(disk: Disk, key: ReplicaKey) -> tuple[int, list[EntryHeader]] | None:
    """Return the first index of a replica's durable log, and the headers of its entries. None if there is no such replica."""
    meta = durable_meta(disk, key)
    if meta is None:
        return None
    rows = disk.files[key].tables["log"].rows
    first = meta.position.index + 1
    return first, [decode_row(index, rows[encode_key(index)]).header() for index in range(first, meta.last_index + 1)]


def check_vote_request(disk: Disk, key: ReplicaKey, meta: ReplicaMeta, request: VoteRequest) -> None:
    """Check a leaving vote request."""
    try:
        term = durable_term(disk, key, meta, request.last_index)
    except CodecError:  # a fault damaged the row, and nobody has read it since
        term = request.last_term
    check_request_durable(request, meta.hard_state, term)


def check_append_response(meta: ReplicaMeta, response: AppendResponse) -> None:
    """Check a leaving acknowledgement."""
    state = meta.hard_state
    if state.term < response.term:
        raise InvariantViolation(
            "AckDurable",
            f"r{response.source} answers in term {response.term}, durable is {state}",
        )
    if not response.is_rejected and state.term == response.term and meta.last_index < response.index:
        raise InvariantViolation(
            "AckDurable",
            f"r{response.source} acknowledges {response.index}, its durable log ends at {meta.last_index}",
        )


def check_vote_response(meta: ReplicaMeta, response: VoteResponse) -> None:
    """Check a leaving granted vote."""
    state = meta.hard_state
    is_kept = state.term > response.term or (state.term == response.term and state.vote == response.target)
    if not is_kept:
        raise InvariantViolation(
            "VoteDurable",
            f"r{response.source} votes for r{response.target} in term {response.term}, durable is {state}",
        )
