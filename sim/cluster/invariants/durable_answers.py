"""`VoteDurable`, `AckDurable`, `RequestDurable`: a vote, an acknowledgement and a request for votes leave only when the disk
holds what they say (thesis 3.8).

Read from the rows on the simulated disk, not from what the node believes.
"""

from __future__ import annotations

from raftmq.raft.messages import AppendResponse, VoteRequest, VoteResponse
from raftmq.storage.entry_codec import CodecError, decode_row_fields, encode_key
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.replica_codec import META_KEY, ReplicaMeta, decode_meta

from sim.cluster.world.disk import Disk
from sim.core.invariants.violation import InvariantViolation
from sim.core.invariants.votes import check_request_durable

_DECODED: dict[bytes, ReplicaMeta] = {}
"""Rows that were decoded: several answers leave between two writes."""
_DECODED_MAX = 1000


def durable_meta(disk: Disk, key: ReplicaKey) -> ReplicaMeta | None:
    """What the disk says of a replica; None when the row is damaged or the replica is gone."""
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
    """The term that the durable log has at an index; None when it ends before. Raises CodecError when a fault damaged the row."""
    if index == meta.position.index:
        return meta.position.term
    row = disk.files[key].tables["log"].rows.get(encode_key(index))
    if row is None or index > meta.last_index:
        return None
    return decode_row_fields(index, row).term


def check_vote_request(disk: Disk, key: ReplicaKey, meta: ReplicaMeta, request: VoteRequest) -> None:
    """A request for votes leaves."""
    try:
        term = durable_term(disk, key, meta, request.last_index)
    except CodecError:  # the row was there before a fault flipped a byte of it, and nobody has read it since
        term = request.last_term
    check_request_durable(request, meta.hard_state, term)


def check_append_response(meta: ReplicaMeta, response: AppendResponse) -> None:
    """An acknowledgement leaves."""
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
    """A granted vote leaves."""
    state = meta.hard_state
    is_kept = state.term > response.term or (state.term == response.term and state.vote == response.target)
    if not is_kept:
        raise InvariantViolation(
            "VoteDurable",
            f"r{response.source} votes for r{response.target} in term {response.term}, durable is {state}",
        )
