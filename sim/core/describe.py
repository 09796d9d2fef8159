"""Describes Raft's values in short texts for traces and golden scripts. The texts are stable, since golden files depend on them."""

from __future__ import annotations

from collections.abc import Sequence

from raftmq.raft.entry import Entry, EntryKind
from raftmq.raft.membership import Membership
from raftmq.raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    ReadIndexRequest,
    ReadIndexResponse,
    SnapshotMeta,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

_KINDS = {
    EntryKind.EMPTY: "empty",
    EntryKind.DATA: "data",
    EntryKind.COMMAND: "command",
    EntryKind.MEMBERSHIP: "member",
}


def describe_entry(entry: Entry) -> str:
    """Format an entry as `term/index kind payload`. DATA has the offset of its first record and its count as well."""
    text = f"{entry.term}/{entry.index} {_KINDS[entry.kind]}"
    if entry.kind is EntryKind.DATA:
        text += f" @{entry.base_offset}+{entry.record_count}"
    if entry.payload and entry.kind is not EntryKind.MEMBERSHIP:
        text += " " + repr(bytes(entry.payload))[1:]
    return text


def describe_entries(entries: Sequence[Entry]) -> str:
    """Format a list of entries in brackets."""
    return "[" + ", ".join(describe_entry(entry) for entry in entries) + "]"


def describe_membership(membership: Membership) -> str:
    """Format a membership as `(1 2 3)`, or `(1 2 4)&&(1 2 3)` if it is joint, then its learners and `auto_leave`."""
    text = "(" + " ".join(map(str, membership.voters)) + ")"
    if membership.outgoing:
        text += "&&(" + " ".join(map(str, membership.outgoing)) + ")"
    if membership.learners:
        text += " learners=(" + " ".join(map(str, membership.learners)) + ")"
    if membership.learners_next:
        text += " learners_next=(" + " ".join(map(str, membership.learners_next)) + ")"
    return text + (" auto_leave" if membership.auto_leave else "")


def describe_meta(meta: SnapshotMeta) -> str:
    """Format the position at which the log restarts, the index of the state, and the membership."""
    return f"T={meta.position.term}/{meta.position.index} A={meta.state_index} {describe_membership(meta.membership)}"


def _name_and_body(message: Message) -> tuple[str, str]:
    match message:
        case VoteRequest():
            name = "PreVoteRequest" if message.is_pre_vote else "VoteRequest"
            body = f"last={message.last_term}/{message.last_index} commit={message.commit_term}/{message.commit_index}"
            return name, body + (" transfer" if message.is_transfer else "")
        case VoteResponse():
            name = "PreVoteResponse" if message.is_pre_vote else "VoteResponse"
            return name, "granted" if message.is_granted else "refused"
        case AppendRequest():
            body = f"prev={message.prev_term}/{message.prev_index} commit={message.commit_index}"
            return "Append", body + (f" {describe_entries(message.entries)}" if message.entries else "")
        case AppendResponse():
            if message.is_rejected:
                return "AppendResponse", f"rejected {message.index} hint={message.hint_term}/{message.hint_index}"
            return "AppendResponse", f"match={message.index}"
        case Heartbeat():
            return "Heartbeat", f"commit={message.commit_index} read={message.read_counter}"
        case HeartbeatResponse():
            return "HeartbeatResponse", f"read={message.read_counter}"
        case InstallSnapshot():
            return "InstallSnapshot", describe_meta(message.meta)
        case TimeoutNow():
            return "TimeoutNow", ""
        case ReadIndexRequest():
            return "ReadIndexRequest", f"request={message.request_id}"
        case ReadIndexResponse():
            return "ReadIndexResponse", f"request={message.request_id} index={message.read_index}"


def message_name(message: Message) -> str:
    """Return the name of a message in scripts and traces."""
    return _name_and_body(message)[0]


def describe_message(message: Message) -> str:
    """Format a message as `1->2 Name term=6 details`."""
    name, body = _name_and_body(message)
    return f"{message.source}->{message.target} {name} term={message.term} {body}".rstrip()
