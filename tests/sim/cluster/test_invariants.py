"""Each invariant can fail: a state broken by hand is refused, and its correct twin is not."""

from __future__ import annotations

import ast
import dataclasses
import random
import re
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.readiness import NotReady, Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Work
from raftmq.broker.replica.disk import IDLE, Writing
from raftmq.broker.replica.inbound_bytes import InboundBytes
from raftmq.broker.replica.initial_state import founder_state
from raftmq.broker.replica.recent_entries import RecentEntries, RecentEntriesBudget
from raftmq.broker.services.append_session import AppendSession
from raftmq.client.codec.batch import encode_body
from raftmq.errors import (
    ErrorCode,
    InternalError,
    InvalidArgumentError,
    NoLeaderError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RaftMQError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.fsm.log_commands import ForgetOffsets
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import AlterConfig, DeleteConsumerGroup, Done, InitNamedProducer, RevertReplicas
from raftmq.fsm.metadata_commands import encode_command as encode_metadata_command
from raftmq.fsm.metadata_views import PartitionView, ReplicaView
from raftmq.raft.entry import Entry, EntryKind, LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership, MembershipChange, MembershipOp
from raftmq.raft.messages import AppendResponse, VoteRequest, VoteResponse
from raftmq.raft.ready import Role
from raftmq.storage.entry_codec import encode_key
from raftmq.storage.errors import CommitFailedError, DamagedReplicaError, RegistryError, StorageFullError
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.pending_write import meta_of_new_replica
from raftmq.storage.registry_codec import ReplicaRow, ReplicaState
from raftmq.storage.row_scrub import ScrubPlace
from raftmq.types import Record, TopicPartition

from sim.cluster import invariants, run
from sim.cluster.checker import Checker
from sim.cluster.invariants.acknowledged import Acknowledged
from sim.cluster.invariants.applied_once import AppliedOnce
from sim.cluster.invariants.bounded_restart import check_bounded_restart, durable_clean_point
from sim.cluster.invariants.budgets import Budgets
from sim.cluster.invariants.client_errors import check_client_error
from sim.cluster.invariants.committed_log import Batch, CommittedLog
from sim.cluster.invariants.committed_on_disk import CommittedOnDisk
from sim.cluster.invariants.definite_failures import DefiniteFailures
from sim.cluster.invariants.durable_answers import (
    check_append_response,
    check_vote_request,
    check_vote_response,
    durable_meta,
)
from sim.cluster.invariants.exactly_once import ExactlyOnce
from sim.cluster.invariants.failed_calls import watch_calls
from sim.cluster.invariants.failed_commits import check_ended_after_failed_commit
from sim.cluster.invariants.group_ownership import GroupOwnership
from sim.cluster.invariants.high_watermark import HighWatermark
from sim.cluster.invariants.memory import Memory
from sim.cluster.invariants.new_voters import check_new_voters
from sim.cluster.invariants.pace import watch_pace
from sim.cluster.invariants.quarantine import check_quarantined_silent, check_serves_none_quarantined
from sim.cluster.invariants.reads import CommittedReads
from sim.cluster.invariants.recoveries import Recoveries
from sim.cluster.invariants.refused_copies import check_only_copies_refused
from sim.cluster.invariants.removals import Removals, check_removable
from sim.cluster.invariants.replica_state import ReplicaStates
from sim.cluster.invariants.resting import check_rest
from sim.cluster.invariants.retention import Retention, check_stamp
from sim.cluster.invariants.reverted_moves import RevertedMoves
from sim.cluster.invariants.served import (
    PlantedDefect,
    check_defect_ends_nothing,
    check_defect_stays,
    check_served_or_reported,
)
from sim.cluster.invariants.settings import KeptSettings
from sim.cluster.invariants.space import FreedSpace
from sim.cluster.invariants.stale_leaders import StaleLeaders
from sim.cluster.invariants.votes import VoteOnce
from sim.cluster.world.disk import Disk, SimLogStore
from sim.core.invariants.election_safety import ElectionSafety
from sim.core.invariants.votes import Rounds
from sim.history.checker import judge
from tests.support.fsm.harness import MetadataLog
from tests.support.fsm.histories import LogBuilder
from tests.support.sim.broken import broken
from tests.support.sim.calm import calm_options

WHERE = TopicPartition("t", 0)
KEY = ReplicaKey(cast("Any", 7), cast("Any", 3))


def entry(index: int, offset: int, *values: bytes, term: int = 2) -> Entry:
    body = encode_body(list(values), None, 1, None, 0) if values else None
    payload = body.seal() if body is not None else b""
    kind = EntryKind.DATA if values else EntryKind.EMPTY
    return Entry(cast("Any", index), cast("Any", term), kind, cast("Any", offset), len(values), 0, payload)


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
    applier = SimpleNamespace(_delayed=[])
    machine = SimpleNamespace(applied_index=5)
    group = cast("Any", SimpleNamespace(state_machine=machine, applier=applier, replica_id=1, group_id=7))
    AppliedOnce(group).on_apply([entry(6, 0), entry(7, 0)])
    with broken("AppliedOnce"):
        AppliedOnce(group).on_apply([entry(7, 0)])

    applier._delayed = [entry(6, 0), entry(7, 0)]  # they wait for rows
    AppliedOnce(group).on_apply([entry(8, 0)])
    with broken("AppliedOnce"):
        AppliedOnce(group).on_apply([entry(9, 0)])


def test_high_watermark_monotone() -> None:
    machine = LogPartition()
    machine.next_offset = 5
    watermark = HighWatermark(cast("Any", SimpleNamespace(state_machine=machine, replica_id=1, group_id=7)))
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
    failures.on_refused(b"b", "DeliveryExpiredError")
    with broken("RefusedNeverApplied"):
        failures.on_refused(b"a", "DeliveryExpiredError")
    with broken("RefusedNeverApplied"):
        failures.on_committed(7, Batch(1, (b"b",), (9, 0), 1))


def test_vote_once_and_durable() -> None:
    votes = VoteOnce()
    first = VoteResponse(*cast("Any", (1, 2, 5, 9, False, True, 0, 0)))
    votes.on_vote(first)
    votes.on_vote(first)
    with broken("VoteOnce"):
        votes.on_vote(dataclasses.replace(first, target=cast("Any", 3)))

    from raftmq.broker.replica.initial_state import joiner_state

    meta = meta_of_new_replica(joiner_state())
    voted = dataclasses.replace(meta, hard_state=HardState(*cast("Any", (5, 2, 0))))
    check_vote_response(voted, first)
    with broken("VoteDurable"):
        check_vote_response(meta, first)


def test_request_durable() -> None:
    from raftmq.broker.replica.initial_state import founder_state

    disk = Disk(random.Random(1), 1 << 30)
    store = SimLogStore(disk, map_bytes=1 << 30)
    state: Any = founder_state(Membership(cast("Any", (3, 4, 5))))
    store.create(KEY, state, ())
    store.open(KEY)
    store.append_batch([(KEY, Update(HardState(*cast("Any", (7, 3, 5))), (entry(6, 0, term=6),)))])

    def leaves(term: int = 7, last: tuple[int, int] = (6, 6), *, is_pre_vote: bool = False) -> None:
        request = VoteRequest(*cast("Any", (3, 4, term, 9, *last, 5, 5, is_pre_vote)))
        meta = durable_meta(disk, KEY)
        assert meta is not None
        check_vote_request(disk, KEY, meta, request)

    leaves()
    leaves(last=(5, 5))
    leaves(term=8, last=(9, 7), is_pre_vote=True)
    for wrong in ({"term": 8}, {"last": (7, 7)}, {"last": (6, 7)}):
        with broken("RequestDurable"):
            leaves(**cast("Any", wrong))
    log = disk.files[KEY].tables["log"]
    row = log.rows[encode_key(6)]
    log.put(encode_key(6), row[:-1] + bytes((row[-1] ^ 1,)))
    leaves()  # damaged later
    log.put(encode_key(6), row)
    store.append_batch([(KEY, Update(HardState(*cast("Any", (8, 4, 5)))))])
    with broken("RequestDurable"):
        leaves(term=8)


def test_committed_on_disk() -> None:
    from raftmq.broker.replica.initial_state import founder_state

    known = CommittedOnDisk()
    hard_state = HardState(*cast("Any", (7, 3, 7)))

    def disk_with(*entries: Entry, key: ReplicaKey = KEY, state: HardState = hard_state) -> tuple[Disk, SimLogStore]:
        disk = Disk(random.Random(1), 1 << 30)
        store = SimLogStore(disk, map_bytes=1 << 30)
        store.create(key, cast("Any", founder_state(Membership(cast("Any", (3, 4, 5))))), ())
        store.open(key)
        store.append_batch([(key, Update(state, entries))])
        return disk, store

    disk, store = disk_with(entry(6, 0, term=6), entry(7, 0, term=6), entry(8, 0, term=6))
    known.on_written(disk, KEY)
    known.on_written(disk, ReplicaKey(KEY.group_id, cast("Any", 9)))  # there is no such replica
    other = ReplicaKey(KEY.group_id, cast("Any", 4))
    twin, _ = disk_with(entry(6, 0, term=6), entry(7, 0, term=6), entry(8, 0, term=7), key=other)
    known.on_written(twin, other)  # nobody has named entry 8 as committed

    wrong, _ = disk_with(entry(6, 0, term=6), entry(7, 0, term=7), key=other)
    with broken("CommittedOnDisk"):
        known.on_written(wrong, other)
    beyond, _ = disk_with(entry(6, 0, term=6), key=other)
    with broken("CommittedOnDisk"):
        known.on_written(beyond, other)
    log = disk.files[KEY].tables["log"]
    row = log.rows[encode_key(7)]
    log.delete(encode_key(7))
    known.on_written(disk, KEY)  # the write did not touch the row
    with broken("CommittedOnDisk"):
        known.on_written(disk, KEY, 7)
    log.put(encode_key(7), row)
    store.append_batch([(KEY, Update(HardState(*cast("Any", (7, 3, 6)))))])
    with broken("CommittedOnDisk"):
        known.on_written(disk, KEY)

    store.append_batch([(KEY, Update(hard_state, (entry(7, 0, term=7),)))])
    with broken("CommittedOnDisk"):
        known.on_written(disk, KEY, 7)


def test_new_voters_answer() -> None:
    core = SimpleNamespace(membership=Membership(*cast("Any", ((1, 2), (4,)))))
    group = cast(
        "Any", SimpleNamespace(core=core, replica_id=1, group_id=7, node_of=lambda replica_id: replica_id + 10)
    )
    add = MembershipChange(cast("Any", ((MembershipOp.ADD_VOTER, 4), (MembershipOp.REMOVE, 2))))
    check_new_voters(group, add, lambda node_id: node_id == 14)
    check_new_voters(group, MembershipChange(cast("Any", ((MembershipOp.ADD_VOTER, 2),))), lambda _: False)
    check_new_voters(group, MembershipChange(cast("Any", ((MembershipOp.ADD_LEARNER, 5),))), lambda _: False)
    with broken("NewVotersAnswer"):
        check_new_voters(group, add, lambda node_id: node_id == 12)


def test_removed_have_no_vote() -> None:
    node = cast("Any", SimpleNamespace(node_id=3, metadata_replica_id=9))
    check_removable(Membership(*cast("Any", ((1, 2), (9,)))), node)
    with broken("RemovedHaveNoVote"):
        check_removable(Membership(*cast("Any", ((1, 2), (), (1, 9)))), node)


def test_calls_have_no_defect() -> None:
    from raftmq.broker.grpc_port import handlers

    original = handlers.internal_error
    undo = watch_calls(lambda check: check())
    assert "a defect of the broker" in str(handlers.internal_error("Poll", StorageFullError(KEY, "no room")))
    handlers.internal_error("Poll", PlantedDefect("n1", "somewhere"))
    with broken("CallsHaveNoDefect"):
        handlers.internal_error("Poll", RuntimeError("deque mutated during iteration"))
    with broken("CallsHaveNoDefect"):
        handlers.internal_error("Poll", TimeoutError())
    with broken("CallsHaveNoDefect"):
        AppendSession._fail(cast("Any", None), cast("Any", None), KeyError("x"))
    undo()
    assert handlers.internal_error is original


def test_client_errors_are_explained() -> None:
    options = calm_options()
    check_client_error("send", NoLeaderError(), options)
    check_client_error("send in passing", UnknownTopicError(), options)
    check_client_error("send", ProducerFencedError(), calm_options(namesakes=2))
    check_client_error("send", OutOfOrderSequenceError(), calm_options(is_forgetful=True))
    check_client_error("send", UnknownPartitionError(), calm_options(grow_every=1.0))
    unexplained: tuple[RaftMQError, ...] = (
        ProducerFencedError(),
        OutOfOrderSequenceError(),
        UnknownPartitionError(),
        UnknownTopicError(),
        InternalError(),
        InvalidArgumentError(),
    )
    for error in unexplained:
        with broken("ClientErrorsAreExplained"):
            check_client_error("send", error, options)
    with broken("ClientErrorsAreExplained"):
        check_client_error("consumer", UnknownTopicError(), options)


def a_process(disk: Disk, commit_failed_at: float | None = None) -> Any:
    machine = SimpleNamespace(name="n1", disk=disk)
    return SimpleNamespace(machine=machine, host="n1#1", commit_failed_at=commit_failed_at)


def test_a_failed_commit_ends_its_broker() -> None:
    disk = Disk(random.Random(1), 1 << 30)
    check_ended_after_failed_commit(a_process(disk), 9.0)
    check_ended_after_failed_commit(a_process(disk, 8.95), 9.0)  # a thread reports it
    with broken("FailedCommitEndsBroker"):
        check_ended_after_failed_commit(a_process(disk, 8.0), 9.0)


def test_a_commit_fails_with_or_without_effect() -> None:
    disk = Disk(random.Random(1), 1 << 30)
    store = SimLogStore(disk, map_bytes=1 << 30)
    state: Any = founder_state(Membership(cast("Any", (3, 4, 5))))
    has_effect: set[bool] = set()
    for number in range(3, 20):
        key = ReplicaKey(cast("Any", 7), cast("Any", number))
        store.create(key, state, ())
        store.open(key)
        disk.failing_commits = 1
        with pytest.raises(CommitFailedError):
            store.append_batch([(key, Update(HardState(*cast("Any", (7, 3, 5))), (entry(6, 0, term=6),)))])
        has_effect.add(encode_key(6) in disk.files[key].tables["log"].rows)
    assert has_effect == {False, True}
    assert disk.failed_commits == 17


def test_no_broker_ends_or_stays_down_without_a_fault_of_its_disk() -> None:
    """A broker that ends is started again, so that nothing else would tell."""
    loop = SimpleNamespace(after=lambda *_: None)
    hooks: dict[str, Any] = {"on_process": [], "on_broken_replica": [], "on_fatal_error": [], "on_failed_start": []}
    checker = Checker(cast("Any", SimpleNamespace(loop=loop, **hooks)))
    disk = Disk(random.Random(1), 1 << 30)
    healthy, failed = a_process(disk), a_process(disk, 8.0)

    checker._on_fatal(failed, CommitFailedError(KEY, "x"))
    checker._on_failed_start(failed, CommitFailedError(KEY, "x"))
    checker._on_failed_start(healthy, RequestError(ErrorCode.BROKER_ID_TAKEN, "x"))
    checker._on_failure(healthy, Work.HOUSEKEEPING, StorageFullError(KEY, "x"))
    for error in (CommitFailedError(KEY, "x"), DamagedReplicaError(KEY, "x"), KeyError("x"), RegistryError("x")):
        with broken("NoDefect"):
            checker._on_fatal(healthy, error)
        with broken("NoDefect"):
            checker._on_failed_start(healthy, error)
    for other in (TimeoutError(), OSError("x")):
        with broken("NoDefect"):
            checker._on_failure(healthy, Work.HOUSEKEEPING, other)
    checker.damaged["n1", KEY] = None
    checker._on_fatal(healthy, DamagedReplicaError(KEY, "x"))


def test_bounded_restart() -> None:
    from raftmq.storage.log_scan import Verify

    disk = Disk(random.Random(1), 1 << 30)
    store = SimLogStore(disk, map_bytes=1 << 30)
    state: Any = founder_state(Membership(cast("Any", (3, 4, 5))))
    store.create(KEY, state, ())
    store.open(KEY)
    for index in range(6, 12):
        store.append_batch([(KEY, Update(HardState(*cast("Any", (7, 3, 5))), (entry(index, 0, term=6),)))])
    place = ScrubPlace()
    while not place.is_done:
        store.scrub(KEY, place, 1 << 20, 100)
    store.append_batch([(KEY, Update(HardState(*cast("Any", (7, 3, 5))), (entry(12, 0, term=6),)))])
    assert durable_clean_point(disk, KEY) == 11

    def restart() -> None:
        clean_point = durable_clean_point(disk, KEY)
        store.close(KEY)
        store.open(KEY)
        check_bounded_restart(store._replica(KEY), clean_point)

    restart()
    store._verify = Verify.FULL
    with broken("BoundedRestart"):
        restart()


def test_space_of_deleted_records_that_is_not_released_is_detected() -> None:
    from raftmq.broker.replica.initial_state import founder_state

    store = SimLogStore(Disk(random.Random(1), 1 << 30), map_bytes=1 << 30)
    state: Any = founder_state(Membership(cast("Any", (3, 4, 5))))
    store.create(KEY, state, ())
    store.open(KEY)
    hard_state = HardState(*cast("Any", (7, 3, 5)))
    entries = tuple(entry(index, index - 6, b"x" * 1000, term=6) for index in range(6, 12))
    store.append_batch([(KEY, Update(hard_state, entries, state_index=entries[-1].index))])
    machine = LogPartition()
    group = SimpleNamespace(group_id=KEY.group_id, key=KEY, state_machine=machine)
    node: Any = SimpleNamespace(
        store=store, engine=SimpleNamespace(replicas={KEY.group_id: group}), view=SimpleNamespace(node_id=1)
    )
    assert FreedSpace().why_kept([node]) == ""

    space = FreedSpace()
    machine.log_start_offset = 6
    assert "6 entries of g7 below its start 6" in space.why_kept([node])
    position = LogPosition(entries[-1].index, entries[-1].term, entries[-1].next_offset)
    store.append_batch([(KEY, Update(hard_state, truncation=position))])
    assert "has_truncated_rows=True" in space.why_kept([node])
    while store.delete_truncated(KEY, 2):
        pass
    assert "has_truncated_rows=False" in space.why_kept([node]), "what the rows took is not given back yet"
    store.reclaim(KEY)
    assert space.why_kept([node]) == ""

    more = tuple(entry(index, index - 6, b"x", term=6) for index in (12, 13))
    store.append_batch([(KEY, Update(hard_state, more, state_index=more[-1].index))])
    machine.log_start_offset = 8
    assert "2 entries of g7 below its start 8" in FreedSpace().why_kept([node])
    assert space.why_kept([node]) == "", "what was trimmed since then is for the next round"


def test_a_backup_takes_as_much_space_as_its_original() -> None:
    from raftmq.broker.replica.initial_state import founder_state

    disk = Disk(random.Random(1), 1 << 30)
    store = SimLogStore(disk, map_bytes=1 << 30)
    state: Any = founder_state(Membership(cast("Any", (3, 4, 5))))
    store.create(KEY, state, ())
    store.open(KEY)
    hard_state = HardState(*cast("Any", (7, 3, 5)))
    entries = tuple(entry(index, index - 6, b"x" * 1000, term=6) for index in range(6, 12))
    store.append_batch([(KEY, Update(hard_state, entries, state_index=entries[-1].index))])
    twin = disk.backup()
    assert twin.free_bytes() == disk.free_bytes()
    assert twin.files[KEY].commits == disk.files[KEY].commits, "the next transaction has the next number"


def test_answer_of_round() -> None:
    rounds = Rounds()
    rounds.on_request(VoteRequest(*cast("Any", (1, 2, 7, 9, 5, 5, 5, 5, True))))
    answer = VoteResponse(*cast("Any", (2, 1, 7, 9, True, True, 5, 5)))
    assert not rounds.is_late(answer)
    late = dataclasses.replace(answer, round=8)
    assert rounds.is_late(late)

    core: Any = SimpleNamespace(role=Role.PRE_CANDIDATE, _votes={1: True}, replica_id=1)
    before = Rounds.state_of(core)
    Rounds.check_not_counted(late, before, core)
    core.role, core._votes = Role.FOLLOWER, {}
    Rounds.check_not_counted(late, before, core)
    for role, votes in ((Role.CANDIDATE, {}), (Role.PRE_CANDIDATE, {1: True, 2: True})):
        core.role, core._votes = role, votes
        with broken("AnswerOfRound"):
            Rounds.check_not_counted(late, before, core)


def test_acknowledgement_durable() -> None:
    from raftmq.broker.replica.initial_state import joiner_state

    meta = dataclasses.replace(meta_of_new_replica(joiner_state()), last_index=cast("Any", 9))
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
        return SimpleNamespace(state_machine=machine, replica_id=replica_id, group_id=7, is_closed=False, disk=IDLE)

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
    engine = SimpleNamespace(replicas={7: group})
    node = SimpleNamespace(registry=registry, partitions={}, engine=engine, view=SimpleNamespace(node_id=1))
    process = cast("Any", SimpleNamespace(node=node, machine=SimpleNamespace(name="n1")))
    message = AppendResponse(*cast("Any", (3, 2, 5, 9)))
    check_quarantined_silent(process, group, message)
    check_serves_none_quarantined(cast("Any", node))

    rows[KEY] = ReplicaRow(ReplicaState.QUARANTINED, "damaged")
    with broken("QuarantinedSilent"):
        check_quarantined_silent(process, group, message)
    with broken("QuarantinedSilent"):
        check_serves_none_quarantined(cast("Any", node))


def test_only_a_copy_of_a_directory_is_given_up() -> None:
    disk = SimpleNamespace(is_copy=True)
    machine = cast("Any", SimpleNamespace(name="n1", disk=disk))
    check_only_copies_refused(machine, "its boot 3 has been seen")
    disk.is_copy = False
    with broken("OnlyCopiesRefused"):
        check_only_copies_refused(machine, "its boot 3 has been seen")


def test_only_a_removed_broker_takes_itself_for_removed() -> None:
    registry, bootstrap = SimpleNamespace(uuid="u", node_id=3), SimpleNamespace(removal="")
    node: Any = SimpleNamespace(registry=registry, _bootstrap=bootstrap)
    retired = SimpleNamespace(by_key={"v": None})
    machine: Any = SimpleNamespace(_tables=SimpleNamespace(_retired_uuids=retired))
    removals = Removals()
    removals.on_applied(machine)
    removals.check(node)

    bootstrap.removal = "broker 2 was removed from the cluster"
    with broken("OnlyRemovedLeave"):
        removals.check(node)
    retired.by_key["u"] = None
    removals.on_applied(machine)
    removals.check(node)


def node_within(limits: Limits) -> Any:
    """Create a node with one group that holds nothing."""
    recent_budget = RecentEntriesBudget(limits.recent_entries_bytes_max)
    group = SimpleNamespace(
        group_id=7,
        log=SimpleNamespace(recent=RecentEntries(recent_budget)),
        disk=IDLE,
        proposals=SimpleNamespace(queue=[]),
        core=SimpleNamespace(applied_index=5, last_index=5),
    )
    engine = SimpleNamespace(
        uncommitted_bytes=0,
        inbound_bytes=0,
        recent_budget=recent_budget,
        _inbound=InboundBytes(),
        write_refusal=None,
        replicas={7: group},
    )
    return SimpleNamespace(engine=engine, limits=limits, view=SimpleNamespace(node_id=1))


def test_budgets_hold_for_proposals() -> None:
    node = node_within(Limits(uncommitted_bytes_max=10))
    budgets = Budgets(node)
    waiters = node.engine.replicas[7].proposals.queue

    def propose(size: int) -> None:
        before = node.engine.uncommitted_bytes
        waiters.append(SimpleNamespace(size=size))
        node.engine.uncommitted_bytes += size
        budgets.on_proposal(before)
        budgets.check()

    def answer_all() -> None:
        waiters.clear()
        node.engine.uncommitted_bytes = 0
        budgets.check()

    propose(4)
    propose(6)
    with broken("BudgetsHold"):
        propose(1)
    answer_all()
    propose(25)  # accepted with any size, since it is alone
    with broken("BudgetsHold"):
        propose(1)
    with broken("BudgetsHold"):
        budgets.check_given_back()
    answer_all()
    budgets.check_given_back()
    propose(4)
    with broken("BudgetsHold"):
        propose(7)  # the earlier large piece no longer allows an excess
    waiters.pop()
    node.engine.uncommitted_bytes -= 6
    with broken("BudgetsHold"):
        budgets.check()


def test_budgets_hold_for_appends() -> None:
    node = node_within(Limits(inbound_append_bytes_max=10))
    budgets = Budgets(node)
    waiting = node.engine._inbound.waiting

    def receive(size: int) -> None:
        before = node.engine.inbound_bytes
        waiting[7] = waiting.get(7, 0) + size
        node.engine.inbound_bytes += size
        budgets.on_append(before)
        budgets.check()

    receive(4)
    receive(6)
    with broken("BudgetsHold"):
        receive(1)
    waiting.clear()
    node.engine.inbound_bytes = 0
    budgets.check_given_back()
    receive(25)
    waiting.clear()
    budgets.check()  # a write holds the bytes
    with broken("BudgetsHold"):
        receive(1)
    node.engine.inbound_bytes = 0
    with broken("BudgetsHold"):
        budgets.check()


def test_budgets_hold_until_received_entries_are_durable() -> None:
    node = node_within(Limits(inbound_append_bytes_max=10))
    budgets = Budgets(node)
    group = node.engine.replicas[7]
    node.engine.inbound_bytes = 8
    group.disk = Writing(1.0)
    budgets.on_write(group, 8)
    budgets.check()

    node.engine.inbound_bytes = 7
    with broken("BudgetsHold"):
        budgets.check()
    group.disk = IDLE
    budgets.check()
    group.disk = Writing(2.0)  # a write of derived state alone
    budgets.check()


def test_budgets_hold_for_recent_entries() -> None:
    overhead = entry_overhead_bytes()
    node = node_within(Limits(recent_entries_bytes_max=2 * overhead))
    budgets = Budgets(node)
    recent, recent_budget = node.engine.replicas[7].log.recent, node.engine.recent_budget
    recent.append((entry(5, 0), entry(6, 0)))
    budgets.check()
    budgets.check_recent_entries()

    recent_budget.bytes_used += 1
    with broken("BudgetsHold"):
        budgets.check()
    with broken("BudgetsHold"):
        budgets.check_recent_entries()
    recent_budget.bytes_used -= 1
    recent.append((entry(7, 0, bytes(2 * overhead)),))
    assert recent.first_index == 7, "it alone is above the limit"
    budgets.check()
    budgets.check_recent_entries()


def entry_overhead_bytes() -> int:
    """Return the bytes counted for an entry without payload."""
    budget = RecentEntriesBudget(1_000_000)
    RecentEntries(budget).append((entry(1, 0),))
    return budget.bytes_used


PART = (4, 0)


def test_one_owner() -> None:
    groups = GroupOwnership(4.0, 1.25)
    groups.on_assigned("g", PART, 7, "a")
    groups.on_assigned("g", PART, 7, "a")
    groups.on_assigned("g", PART, 9, "b")
    with broken("OneOwner"):
        groups.on_assigned("g", PART, 9, "a")


def test_fence_holds() -> None:
    groups = GroupOwnership(4.0, 1.25)
    groups.on_opened("g", PART, 7, -1, -1)
    before = groups.fence("g", PART)
    groups.on_opened("g", PART, 9, -1, -1)
    # this commit was sent before the other member opened the partition, so either may have been first
    groups.on_committed("g", PART, 7, 5, before, 0)
    groups.on_committed("g", PART, 9, 6, groups.fence("g", PART), 0)
    with broken("FenceHolds"):
        groups.on_committed("g", PART, 7, 7, groups.fence("g", PART), 0)


def test_committed_forward() -> None:
    groups = GroupOwnership(4.0, 1.25)
    floor = groups.floor("g", PART)
    groups.on_committed("g", PART, 7, 5, 0, 0)
    groups.on_fetched("g", PART, 3, floor)  # the read was sent before this commit was acknowledged
    groups.on_opened("g", PART, 9, 5, groups.floor("g", PART))
    with broken("CommittedForward"):
        groups.on_opened("g", PART, 11, 4, groups.floor("g", PART))
    with broken("CommittedForward"):
        groups.on_fetched("g", PART, -1, groups.floor("g", PART))


def test_session_kept() -> None:
    groups = GroupOwnership(10.0, 1.25)
    groups.on_unknown("m", 1.0, 9.0)
    with broken("SessionKept"):
        groups.on_unknown("m", 1.0, 8.9)
    groups.on_coordinator(0.9)
    groups.on_unknown("m", 1.0, 8.9)  # it was heard by a coordinator that had a successor
    with broken("SessionKept"):
        groups.on_unknown("m", 0.8, 8.7)


def test_a_member_that_sends_heartbeats_is_not_removed() -> None:
    """If it comes back it only joins again, and so its answers do not tell."""
    groups = GroupOwnership(10.0, 1.25)
    for member_id in ("silent", "heard", "leaves"):
        groups.on_heard(member_id, 1.0 if member_id == "silent" else 8.0)
    groups.on_may_go("leaves")
    groups.on_removed(("silent", "leaves", "never answered"), 9.0)
    with broken("SessionKept"):
        groups.on_removed(("heard",), 9.0)


def test_retention_keeps() -> None:
    acknowledged = Acknowledged(committed())
    retention = Retention(acknowledged)
    retention.kept_ms[7] = 1_000
    retention.on_committed(7, 4, 20_000)
    retention.on_committed(7, 2, 10_000)
    assert retention.on_trim(7, 2, wall_ms_max=11_001)
    with broken("RetentionKeeps"):
        retention.on_trim(7, 4, wall_ms_max=20_900)
    with broken("RetentionKeeps"):
        retention.on_trim(8, 1, wall_ms_max=99_999)
    acknowledged.on_trim(8, 1)
    assert not retention.on_trim(8, 1, wall_ms_max=99_999), "somebody asked for it"


def test_a_record_is_not_stamped_old() -> None:
    log = LogBuilder()
    entry = log.batch(1, 0, 0)
    check_stamp(7, entry, log.time_ms)
    with broken("NotStampedOld"):
        check_stamp(7, entry, log.time_ms + 1)


def test_nothing_is_forgotten() -> None:
    memory = Memory(is_forgetful=False)
    log, partition = LogBuilder(), LogPartition()
    group: Any = SimpleNamespace(group_id=7, state_machine=partition)
    partition.apply(log.batch(1, 0, 0))
    memory.check(group)
    partition.producers._forget(1)
    with broken("NothingForgotten"):
        memory.check(group)
    Memory(is_forgetful=True).check(group)

    cluster = MetadataLog(nodes=1)
    cluster.run(InitNamedProducer("p", None))
    group = SimpleNamespace(group_id=0, state_machine=cluster.state)
    memory.check(group)
    cluster.state._tables.producer_names.expire(1 << 60)
    with broken("NothingForgotten"):
        memory.check(group)
    with broken("NothingForgotten"):
        memory.on_command(ForgetOffsets(("g",), 1))
    with broken("NothingForgotten"):
        memory.on_metadata_command(DeleteConsumerGroup("g", 1))
    memory.on_command(None)


def test_records_deleted_during_a_read_do_not_count_as_lost() -> None:
    acknowledged = Acknowledged(committed(entry(5, 0, b"a", b"b")))
    acknowledged.on_acknowledged(7, WHERE, 0, b"a")
    acknowledged.on_acknowledged(7, WHERE, 1, b"b")
    acknowledged.on_expired(7, 1)

    acknowledged.check_read(7, 0, {1: b"b"})
    with broken("AcknowledgedNeverLost"):
        acknowledged.check_read(7, 0, {})


def test_stale_leader_steps_down() -> None:
    def process(name: str, term: int, *, is_confirmed: bool, is_frozen: bool = False) -> Any:
        core = SimpleNamespace(is_confirmed_leader=is_confirmed)
        group = SimpleNamespace(core=core, group_id=7, term=term, role=Role.LEADER)
        timing = SimpleNamespace(election_seconds=lambda group_id: 1.0)
        node = SimpleNamespace(engine=SimpleNamespace(replicas={7: group}), timing=timing)
        return SimpleNamespace(node=node, host=Named(name, is_frozen))

    leaders = StaleLeaders()
    stale, fresh = process("a", 4, is_confirmed=True), process("b", 5, is_confirmed=True)
    leaders.look([stale, fresh], 10.0)
    leaders.look([stale, fresh], 12.9)
    with broken("StaleLeaderStepsDown"):
        leaders.look([stale, fresh], 13.1)

    leaders = StaleLeaders()
    leaders.look([stale, fresh], 10.0)
    leaders.look([process("a", 4, is_confirmed=True, is_frozen=True), fresh], 12.0)
    leaders.look([stale, fresh], 13.5)  # the process was frozen in between


def test_rest_is_quiet() -> None:
    beat = (2, (7, 3, 4, 5, 9, 1))
    progress = {3: SimpleNamespace(match_index=9), 4: SimpleNamespace(match_index=9)}
    leadership = SimpleNamespace(
        progress=progress, reads=SimpleNamespace(round=1), quorum_checked_at=95, transferee=0, confirm_round=0
    )
    core = SimpleNamespace(
        replica_id=3, term=5, role=Role.LEADER, commit_index=9, leadership=leadership, next_tick=107,
        ticks=SimpleNamespace(now=100), settings=SimpleNamespace(election_ticks=12), campaign_due=False, heartbeat_due=False,
    )  # fmt: skip
    replica: Any = SimpleNamespace(
        core=core, group_id=7, replica_id=3, disk=IDLE, is_doubted=False, is_closed=False, heartbeats=[beat],
        node_of=lambda _: 2, reads=SimpleNamespace(are_waiting=False),
    )  # fmt: skip
    check_rest(replica)
    core.commit_index = progress[4].match_index = 10
    with broken("RestIsQuiet"):
        check_rest(replica)
    core.next_tick = 0  # it does not rest
    check_rest(replica)

    core.role, core.leadership, core.next_tick, core._timeout_ticks, core._election_elapsed = (
        Role.FOLLOWER,
        None,
        107,
        12,
        5,
    )
    check_rest(replica)
    core._election_elapsed = 12
    with broken("RestIsQuiet"):
        check_rest(replica)


class Named:
    """A host."""

    rate = 1.0

    def __init__(self, name: str, is_frozen: bool) -> None:
        self.name = name
        self.is_frozen = is_frozen

    def __repr__(self) -> str:
        return self.name


def test_served_or_reported() -> None:
    replica = SimpleNamespace(node_id=1, replica_id=3, is_lost=False)
    view = SimpleNamespace(group_id=7, replicas=(replica,), retiring=())
    metadata = SimpleNamespace(node=lambda _: SimpleNamespace(uuid="u"), partitions_of_node=lambda _: [view])
    served = {7: SimpleNamespace(replica=SimpleNamespace(is_closed=False))}
    node: Any = SimpleNamespace(
        view=SimpleNamespace(metadata=SimpleNamespace(state_machine=metadata), node_id=1),
        standing=SimpleNamespace(not_ready_reasons=list, warnings=list),
        registry=SimpleNamespace(uuid="u"),
        partitions=served,
    )
    process = cast("Any", SimpleNamespace(node=node, machine=SimpleNamespace(name="n1")))
    check_served_or_reported(process)

    node.partitions = {}
    with broken("ServedOrReported"):
        check_served_or_reported(process)
    node.standing.warnings = lambda: ["replica 3 of group 7 is not served (failing): a bug"]
    check_served_or_reported(process)
    node.standing.warnings = list
    node.standing.not_ready_reasons = lambda: [NotReady(Reason.STARTING_REPLICAS, "1")]
    check_served_or_reported(process)


def test_defect_stays() -> None:
    planted = PlantedDefect("n1", "here")
    check_defect_stays("n1", planted)
    check_defect_ends_nothing("n2", OSError("another error"))
    with broken("DefectStays"):
        check_defect_stays("n2", planted)
    with broken("DefectStays"):
        check_defect_ends_nothing("n1", planted)


def test_an_undecided_history_or_one_not_read_to_the_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation: Any = SimpleNamespace(workload=SimpleNamespace(history=[]), queues=None)
    verdict = judge([])
    monkeypatch.setattr(run, "judge", lambda *_, **__: verdict)
    verdict.is_read_to_the_end = True
    run.Simulation._judge_history(simulation)

    verdict.undecided = ["t: too many"]
    with broken("History.undecided"):
        run.Simulation._judge_history(simulation)
    verdict.undecided, verdict.is_read_to_the_end = [], False
    with broken("History.unread"):
        run.Simulation._judge_history(simulation)


def test_every_invariant_fails_in_some_test() -> None:
    assert invariants.__doc__ is not None
    rows = [line for line in invariants.__doc__.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([A-Z]\w+)`", row.split("|")[1])}

    tests = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("test_*invariants.py")))
    assert named == set(re.findall(r'with broken\("(\w+)"\)', tests))
    assert {name for name in demanded() if name != "NoDefect"} <= named


def demanded() -> set[str]:
    """Return the names of the invariants that the simulator of whole nodes demands."""
    sources = (ast.walk(ast.parse(path.read_text())) for path in Path(invariants.__file__).parents[1].rglob("*.py"))
    calls = ([node.func, *node.args] for node in chain.from_iterable(sources) if isinstance(node, ast.Call))
    names = [parts[-2] for parts in calls if any(isinstance(part, ast.Name) and part.id == "demand" for part in parts)]
    found = {str(name.value) for name in names if isinstance(name, ast.Constant)}
    found -= {name for name in found if name.startswith("History.")}
    assert len(found) > 30
    return found


def test_a_group_that_was_replaced_must_not_lead_again() -> None:
    recoveries = Recoveries()
    recoveries.on_continued(1, 4)
    recoveries.on_leader(1, 3)  # nobody knows yet whether metadata has the recovery
    recoveries.on_recovered(1, 4)
    recoveries.on_continued(4, 9)
    assert (recoveries.origin(9), recoveries.origin(2)) == (1, 2)
    recoveries.on_shortened(9, 12)
    assert (recoveries.origin(12), recoveries.origin(9), recoveries.newest(4)) == (12, 1, 12)
    recoveries.on_leader(4, 7)
    with broken("OldGroupSilent"):
        recoveries.on_leader(1, 3)


def test_after_a_lossy_recovery_the_kept_records_stay_and_the_others_may_be_missing() -> None:
    log, where = CommittedLog(), TopicPartition("t", 0)
    acknowledged, reads = Acknowledged(log), CommittedReads(log)
    for index, value in enumerate((b"a", b"b", b"c"), start=1):
        log.on_applied(1, 1, entry(index, index - 1, value))
        acknowledged.on_acknowledged(1, where, index - 1, value)
    kept = [entry(1, 0, b"a").header(), entry(2, 1, b"b").header()]
    assert log.kept_until(1, 1, kept) == 3
    assert log.kept_until(1, 1, [*kept, entry(3, 2, b"c").header()]) == 4
    assert log.kept_until(1, 1, [*kept, entry(3, 2, b"x", term=9).header()]) == 3
    assert log.shorten(1, 4, 3) == 2
    acknowledged.shorten(1, 4, 2)

    log.on_applied(4, 7, entry(3, 2, b"d", term=9))
    acknowledged.on_acknowledged(4, where, 2, b"c", 1)  # its answer was on the way
    reads.on_read(4, Record("t", 0, 2, 1, None, b"c"))
    acknowledged.check_read(4, 0, {0: b"a", 1: b"b", 2: b"d"})
    with broken("AcknowledgedNeverLost"):
        acknowledged.on_acknowledged(4, where, 2, b"c", 4)
    with broken("AcknowledgedNeverLost"):
        acknowledged.check_read(4, 0, {0: b"a", 2: b"d"})
    with broken("CommittedReads"):
        reads.on_read(4, Record("t", 0, 1, 1, None, b"c"))
    with broken("StateMachineSafety"):
        log.on_applied(4, 7, entry(2, 1, b"x", term=9))


def test_moves_keep_their_rate() -> None:
    clock = [0.0]
    sent: list[int] = []
    pace = SimpleNamespace(
        _loop=SimpleNamespace(time=lambda: clock[0]), spend=sent.append, set_rate=lambda _bytes_per_second: None
    )
    watch_pace(pace, 1.0, lambda check, *arguments: check(*arguments))

    pace.spend(1_000)  # there is no limit yet
    pace.set_rate(100)
    clock[0] = 1.0
    pace.spend(150)  # one message may be larger than the budget
    clock[0] = 1.5
    pace.spend(10)
    with broken("MovesKeepTheirRate"):
        pace.spend(10)
    assert sent == [1_000, 150, 10]


def test_settings_are_kept() -> None:
    stored: dict[int, dict[str, str]] = {0: {}, 1: {}}
    nodes = (SimpleNamespace(node_id=1),)
    kept = KeptSettings(cast("Any", SimpleNamespace(nodes=lambda: nodes, config=lambda node_id: stored[node_id])))

    def alter(node_id: int, name: str, text: str | None) -> None:
        payload = encode_metadata_command(AlterConfig(node_id, {name: text}))
        kept.on_applied(
            Entry(cast("Any", 1), cast("Any", 1), EntryKind.COMMAND, cast("Any", 0), 0, 0, payload), Done(1)
        )

    stored[1]["scrub_bytes_per_second"] = "5"
    alter(1, "scrub_bytes_per_second", "5")
    stored[0]["scrub_bytes_per_second"] = "7"
    kept.on_restored()  # from a snapshot
    del stored[1]["scrub_bytes_per_second"]
    alter(1, "scrub_bytes_per_second", None)
    with broken("SettingsAreKept"):
        alter(0, "scrub_bytes_per_second", None)


def test_a_healed_broker_is_ready_and_keeps_nothing() -> None:
    reasons: list[NotReady] = []
    disk, placed = Disk(random.Random(1), 1 << 30), SimpleNamespace(replicas=(ReplicaView(1, 3),))
    process = SimpleNamespace(machine=SimpleNamespace(disk=disk))
    standing = SimpleNamespace(not_ready_reasons=lambda: reasons)
    node: Any = SimpleNamespace(standing=standing, process=process, view=SimpleNamespace(node_id=1))
    partitions: dict[int, Any] = {7: placed}
    metadata: Any = SimpleNamespace(partition=partitions.get)
    why_not = run.Simulation._problem_of_node

    disk.files[ReplicaKey(cast("Any", 7), cast("Any", 2))] = cast("Any", None)
    assert why_not(node, metadata) == "node 1 keeps r2 of g7"
    partitions.clear()
    assert why_not(node, metadata) == "node 1 keeps r2 of g7"
    reasons.append(NotReady(Reason.STOPPING, "it stops"))
    assert why_not(node, metadata) == "node 1 is not ready: it stops"


def test_a_healed_partition_has_the_replicas_of_its_topic() -> None:
    nodes = [SimpleNamespace(state="active") for _ in range(3)]
    topic = SimpleNamespace(group_ids=(7,), replication_factor=3)
    partition = SimpleNamespace(replicas=(1, 2))
    metadata: Any = SimpleNamespace(
        nodes=lambda: nodes, topics=lambda: (topic,), partition=lambda _: partition, feature_level=FEATURE_LEVEL
    )
    simulation: Any = SimpleNamespace(nemesis=SimpleNamespace(counts={"move_replicas": 0}))
    why_not = run.Simulation._problem_of_replicas

    assert why_not(simulation, metadata) == "g7 has 2 replicas, and its topic wants 3"
    nodes[0].state = "removed"
    assert not why_not(simulation, metadata), "there is no other broker"
    nodes[0].state = "active"
    simulation.nemesis.counts["move_replicas"] = 1
    assert not why_not(simulation, metadata), "an operator may have moved it to two brokers"


def test_given_up_moves_are_undone() -> None:
    """A snapshot replaces the state that the end of a move is compared with: seed 821610 with `--queues`."""

    def moving(wanted: int, leaving: int) -> PartitionView:
        """Return a partition in which one replica takes the seat 2 of another."""
        first, *seat = (ReplicaView(1, 1), *(ReplicaView(one, one, inherited_seat=2) for one in (wanted, leaving)))
        return PartitionView(1, 0, 7, (), (first, seat[0]), (seat[1],), 1)

    state = [moving(3, leaving=2)]
    machine = SimpleNamespace(unsettled_partitions=lambda: tuple(state), partition=lambda _: state[0])
    reverted = RevertedMoves(cast("Any", machine))
    given_up = encode_metadata_command(RevertReplicas(7, 1, "no progress"))
    give_up = Entry(cast("Any", 1), cast("Any", 1), EntryKind.COMMAND, cast("Any", 0), 0, 0, given_up)

    state[0] = moving(2, leaving=3)
    reverted.on_applied(give_up, Done(1))

    state[0] = moving(5, leaving=4)
    reverted.look()
    state[0] = moving(4, leaving=5)
    reverted.on_applied(give_up, Done(2))

    with broken("GivenUpMovesAreUndone"):
        reverted.on_applied(give_up, Done(3))


def test_after_a_lossy_recovery_readers_begin_again_where_it_said_that_the_log_ends() -> None:
    """More may have come to the replica after the command had asked it."""
    loop = SimpleNamespace(after=lambda *_: None)
    hooks: dict[str, Any] = {"on_process": [], "on_broken_replica": [], "on_fatal_error": [], "on_failed_start": []}
    checker = Checker(cast("Any", SimpleNamespace(loop=loop, trace=lambda _: None, **hooks)))
    for index in (1, 2, 3):
        checker.committed.on_applied(1, 1, entry(index, index - 1, b"a"))
    told: list[tuple[int, int, int]] = []
    checker.on_lost_end = lambda *end: told.append(end)

    checker._shorten(1, 4, 3, stated_end=1)
    checker._shorten(1, 5, 3, stated_end=2)

    assert told == [(1, 4, 1), (1, 5, 2)]
    assert checker.committed.ends == {1: 3, 4: 2, 5: 2}, "the replica keeps all that it had"


def test_a_group_that_a_description_named_before_its_founder_opened_gets_its_old_id() -> None:
    class Recovered(Metadata):
        def recovery(self, group_id: int) -> Any:
            return SimpleNamespace(old_group_id=6, log_end_offset=-1)

        def partition(self, group_id: int) -> Any:
            return SimpleNamespace(creation_replicas=(SimpleNamespace(replica_id=24),))

    simulation = run.Simulation(1)
    checker, groups = simulation.checker, simulation.workload.groups
    node = SimpleNamespace(engine=SimpleNamespace(replicas={0: SimpleNamespace(state_machine=Recovered())}))
    where = TopicPartition("t", 0)
    groups[where] = checker.origin(7)
    checker.retention.kept_ms[7] = 1_000

    checker._on_founder(
        cast("Any", SimpleNamespace(node=node)), cast("Any", SimpleNamespace(group_id=7, replica_id=24, key=None))
    )

    assert groups[where] == 6
    assert checker.retention.kept_ms == {6: 1_000}


def test_after_a_lossy_recovery_commits_and_fences_may_be_missing() -> None:
    groups = GroupOwnership(4.0, 1.25)
    groups.on_opened("g", PART, 9, -1, -1)
    fence, losses = groups.fence("g", PART), groups.losses(PART)
    groups.on_committed("g", PART, 9, 6, fence, losses)
    floor = groups.floor("g", PART)
    groups.on_lost(PART)
    groups.on_fetched("g", PART, 3, floor)
    groups.on_committed("g", PART, 9, 8, fence, losses)  # its answer was on the way
    groups.on_opened("g", PART, 7, 3, groups.floor("g", PART))
    groups.on_committed("g", PART, 7, 4, groups.fence("g", PART), groups.losses(PART))
    with broken("CommittedForward"):
        groups.on_fetched("g", PART, 3, groups.floor("g", PART))
