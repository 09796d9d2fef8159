"""Each invariant can fail: a state broken by hand is refused, and its sound twin is not."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest
from raftmq.broker.limits import Limits
from raftmq.client.batch_codec import encode_body
from raftmq.fsm.log_partition import LogPartition
from raftmq.raft.entry import Entry, EntryKind
from raftmq.raft.hard_state import HardState
from raftmq.raft.messages import AppendResponse, VoteResponse
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.pending_write import meta_of_new_replica
from raftmq.storage.registry import ReplicaRow, ReplicaState
from raftmq.types import Record, TopicPartition

from sim.core.invariants.election_safety import ElectionSafety
from sim.core.invariants.violation import InvariantViolation
from sim.node.invariants.acknowledged import Acknowledged
from sim.node.invariants.applied_once import AppliedOnce
from sim.node.invariants.budgets import ONE_PIECE_BYTES_MAX, check_budgets, check_budgets_given_back
from sim.node.invariants.committed_log import Batch, CommittedLog
from sim.node.invariants.definite_failures import DefiniteFailures
from sim.node.invariants.durable_answers import check_append_response, check_vote_response
from sim.node.invariants.exactly_once import ExactlyOnce
from sim.node.invariants.high_watermark import HighWatermark
from sim.node.invariants.quarantine import check_quarantined_silent, check_serves_none_quarantined
from sim.node.invariants.reads import CommittedReads
from sim.node.invariants.replica_state import ReplicaStates
from sim.node.invariants.votes import VoteOnce

WHERE = TopicPartition("t", 0)
KEY = ReplicaKey(cast("Any", 7), cast("Any", 3))


def entry(index: int, offset: int, *values: bytes, term: int = 2) -> Entry:
    body = encode_body(list(values), None, 1, None, 0) if values else None
    payload = body.seal() if body is not None else b""
    kind = EntryKind.DATA if values else EntryKind.EMPTY
    return Entry(cast("Any", index), cast("Any", term), kind, cast("Any", offset), len(values), 0, payload)


def broken(name: str) -> Any:
    return pytest.raises(InvariantViolation, match=f"^{name}: ")


def committed(*entries: Entry) -> CommittedLog:
    log = CommittedLog()
    for one in entries:
        log.on_applied(7, 1, one)
    return log


def test_state_machine_safety() -> None:
    log = committed(entry(5, 0, b"a"))
    assert not log.on_applied(7, 2, entry(5, 0, b"a"))

    with broken("StateMachineSafety"):
        log.on_applied(7, 3, entry(5, 0, b"b"))


def test_offsets_dense() -> None:
    log = committed(entry(5, 0, b"a", b"b"))
    assert log.on_applied(7, 1, entry(6, 2, b"c"))

    with broken("OffsetsDense"):
        log.on_applied(7, 1, entry(7, 4, b"d"))


def test_applied_once() -> None:
    group = cast("Any", SimpleNamespace(machine=SimpleNamespace(applied_index=5), replica_id=1, group_id=7))
    AppliedOnce(group).on_apply([entry(6, 0), entry(7, 0)])

    with broken("AppliedOnce"):
        AppliedOnce(group).on_apply([entry(7, 0)])


def test_high_watermark_monotone() -> None:
    machine = LogPartition()
    machine.next_offset = 5
    watermark = HighWatermark(cast("Any", SimpleNamespace(machine=machine, replica_id=1, group_id=7)))
    watermark.check()
    watermark.check()

    machine.next_offset = 4
    with broken("HighWatermarkMonotone"):
        watermark.check()


def test_acknowledged_never_lost() -> None:
    acknowledged = Acknowledged(committed(entry(5, 0, b"a", b"b")))
    acknowledged.on_acknowledged(7, WHERE, 1, b"b")
    with broken("AcknowledgedNeverLost"):
        acknowledged.on_acknowledged(7, WHERE, 0, b"x")

    acknowledged.check_read(7, 0, {0: b"a", 1: b"b"})
    with broken("AcknowledgedNeverLost"):
        acknowledged.check_read(7, 0, {0: b"a"})
    with broken("AcknowledgedNeverLost"):
        acknowledged.check_read(7, 2, {})
    acknowledged.on_trim(7, 2)
    acknowledged.check_read(7, 2, {})


def test_committed_reads() -> None:
    reads = CommittedReads(committed(entry(5, 0, b"a")))
    reads.on_read(7, Record("t", 0, 0, 1, None, b"a"))

    with broken("CommittedReads"):
        reads.on_read(7, Record("t", 0, 1, 1, None, b"b"))


def test_exactly_once() -> None:
    once = ExactlyOnce()
    once.on_committed(7, Batch(0, (b"a", b"b"), (9, 0), 0))
    once.on_committed(7, Batch(2, (b"c",), (9, 0), 2))
    once.on_committed(7, Batch(3, (b"p",), (0, 0), 0))
    once.on_committed(7, Batch(4, (b"p",), (0, 0), 0))
    assert once.duplicates == 1

    with broken("ExactlyOnce"):
        once.on_committed(7, Batch(5, (b"a",), (9, 0), 3))


def test_exactly_once_sequences() -> None:
    once = ExactlyOnce()
    once.on_committed(7, Batch(0, (b"a",), (9, 0), 0))

    with broken("ExactlyOnce"):
        once.on_committed(7, Batch(1, (b"b",), (9, 0), 5))


def test_refused_never_applied() -> None:
    failures = DefiniteFailures()
    failures.on_committed(7, Batch(0, (b"a",), (9, 0), 0))
    failures.on_refused(7, b"b", "DeliveryExpiredError")
    with broken("RefusedNeverApplied"):
        failures.on_refused(7, b"a", "DeliveryExpiredError")
    with broken("RefusedNeverApplied"):
        failures.on_committed(7, Batch(1, (b"b",), (9, 0), 1))


def test_vote_once_and_durable() -> None:
    votes = VoteOnce()
    first = VoteResponse(*cast("Any", (1, 2, 5, False, True, 0, 0)))
    votes.on_vote(first)
    votes.on_vote(first)
    with broken("VoteOnce"):
        votes.on_vote(dataclasses.replace(first, target=cast("Any", 3)))

    from raftmq.broker.founding import unborn

    meta = meta_of_new_replica(unborn())
    voted = dataclasses.replace(meta, hard_state=HardState(*cast("Any", (5, 2, 0))))
    check_vote_response(voted, first)
    with broken("VoteDurable"):
        check_vote_response(meta, first)


def test_acknowledgement_durable() -> None:
    from raftmq.broker.founding import unborn

    meta = dataclasses.replace(meta_of_new_replica(unborn()), last_index=cast("Any", 9))
    durable = dataclasses.replace(meta, hard_state=HardState(*cast("Any", (5, 2, 0))))
    response = AppendResponse(*cast("Any", (1, 2, 5, 9)))
    check_append_response(durable, response)
    with broken("AckDurable"):
        check_append_response(durable, dataclasses.replace(response, index=cast("Any", 10)))
    with broken("AckDurable"):
        check_append_response(meta, response)


def test_election_safety() -> None:
    elections = ElectionSafety()
    elections.on_leader(1, 5)
    elections.on_leader(1, 5)
    with broken("ElectionSafety"):
        elections.on_leader(2, 5)


def test_equal_state() -> None:
    def group(replica_id: int, offset: int) -> Any:
        machine = LogPartition()
        machine.next_offset, machine._are_scalars_dirty = offset, True
        return SimpleNamespace(machine=machine, replica_id=replica_id, group_id=7, is_closed=False, is_installing=False)

    states = ReplicaStates()
    states.on_state(group(1, 5))
    states.on_state(group(2, 5))
    assert states.compared == 1
    with broken("EqualState"):
        states.on_state(group(3, 6))


def test_quarantined_silent() -> None:
    rows = {KEY: ReplicaRow(ReplicaState.CREATED)}
    group = cast("Any", SimpleNamespace(key=KEY, replica_id=3, group_id=7, is_closed=False))
    registry = SimpleNamespace(
        replica=rows.get,
        quarantined=lambda: {key: row.reason for key, row in rows.items() if row.state is ReplicaState.QUARANTINED},
    )
    engine = SimpleNamespace(groups={7: group})
    node = SimpleNamespace(registry=registry, partitions={}, engine=engine, node_id=1)
    process = cast("Any", SimpleNamespace(node=node, machine=SimpleNamespace(name="n1")))
    message = AppendResponse(*cast("Any", (3, 2, 5, 9)))
    check_quarantined_silent(process, group, message)
    check_serves_none_quarantined(cast("Any", node))

    rows[KEY] = ReplicaRow(ReplicaState.QUARANTINED, "damaged")
    with broken("QuarantinedSilent"):
        check_quarantined_silent(process, group, message)
    with broken("QuarantinedSilent"):
        check_serves_none_quarantined(cast("Any", node))


def test_budgets_hold() -> None:
    inbound = SimpleNamespace(waiting={})
    budget = SimpleNamespace(bytes_used=0)
    engine = SimpleNamespace(
        uncommitted_bytes=0, inbound_bytes=0, recent_budget=budget, _inbound=inbound, write_refusal=None, groups={}
    )
    node = cast("Any", SimpleNamespace(engine=engine, limits=Limits(uncommitted_bytes_max=10), node_id=1))
    check_budgets(node)
    check_budgets_given_back(node)

    engine.uncommitted_bytes = 1
    check_budgets(node)
    with broken("BudgetsHold"):
        check_budgets_given_back(node)
    engine.uncommitted_bytes = ONE_PIECE_BYTES_MAX + 1
    with broken("BudgetsHold"):
        check_budgets(node)
