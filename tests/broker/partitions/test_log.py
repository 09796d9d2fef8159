"""One partition is tested through `PartitionLog` and the Log service, on a real core."""

from __future__ import annotations

import asyncio
import itertools
import struct

import pytest
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.replica import log_marks, log_tail
from raftmq.fsm.log_commands import CommitOffset
from raftmq.fsm.metadata import Metadata
from raftmq.proto import queue_pb2 as pb
from raftmq.queue_batch import MessageColumns, encode, seal_queue_batch
from raftmq.raft.entry import Entry, EntryKind
from raftmq.raft.messages import AppendRequest
from raftmq.types import GroupId, LogIndex, NodeId, Offset, ReplicaId, Term

from tests.support.broker.harness import append_request, batch, running


async def _turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_batches_of_one_call_are_one_proposal_with_dense_offsets():
    async with running() as node:
        topic = await node.topic()
        log = node.partition(topic)
        before = log.replica.core.last_index
        result = await node.append(topic, batch(3, sequence=0), batch(2, sequence=3), batch(4, producer=0))
        assert not result.HasField("error")
        assert list(result.base_offsets) == [0, 3, 5]
        assert result.leader_epoch == log.replica.term
        assert log.high_watermark == 9
        assert log.replica.core.last_index == before + 3
        assert (await node.append(topic, batch(1, producer=0))).base_offsets == [9]


async def test_a_repeated_batch_is_answered_with_its_first_offset_and_written_once():
    """KIP-98."""
    async with running() as node:
        topic = await node.topic()
        first = batch(3, sequence=0)
        assert (await node.append(topic, first)).base_offsets == [0]
        assert (await node.append(topic, first)).base_offsets == [0]
        assert (await node.append(topic, first, batch(1, sequence=3))).base_offsets == [0, 3]
        assert node.partition(topic).high_watermark == 4


async def test_a_duplicate_too_old_to_be_remembered_is_success_without_an_offset():
    async with running() as node:
        topic = await node.topic()
        for number in range(7):
            await node.append(topic, batch(1, sequence=number))
        assert (await node.append(topic, batch(1, sequence=0))).base_offsets == [-1]
        assert (await node.append(topic, batch(1, sequence=6))).base_offsets == [6]


async def test_a_duplicate_of_an_uncommitted_batch_is_answered_only_after_its_commit():
    async with running() as node:
        topic = await node.topic()
        node.hold_commits = True
        original = asyncio.create_task(node.append(topic, batch(2, sequence=0)))
        await _turns()
        again = asyncio.create_task(node.append(topic, batch(2, sequence=0)))
        await _turns()
        assert not original.done()
        assert not again.done()
        node.release_commits()
        assert (await original).base_offsets == [0]
        assert (await again).base_offsets == [0]
        assert node.partition(topic).high_watermark == 2


async def test_a_cancelled_append_does_not_cancel_its_duplicate():
    async with running() as node:
        topic = await node.topic()
        node.hold_commits = True
        original = asyncio.create_task(node.append(topic, batch(2, sequence=0)))
        await _turns()
        again = asyncio.create_task(node.append(topic, batch(2, sequence=0)))
        await _turns()
        original.cancel()
        await _turns()
        node.release_commits()
        assert (await again).base_offsets == [0]


async def test_a_gap_is_refused_after_a_read_confirmation_and_the_accepted_prefix_stays():
    async with running() as node:
        topic = await node.topic()
        result = await node.append(topic, batch(1, sequence=0), batch(1, sequence=5))
        assert list(result.base_offsets) == [0]
        assert result.error.code == pb.OUT_OF_ORDER_SEQUENCE
        assert result.error.outcome == pb.NOT_APPLIED
        assert (await node.append(topic, batch(1, sequence=1))).base_offsets == [1]


async def test_a_gap_that_closes_before_the_confirmation_is_no_gap():
    """The batches arrived in another order than that of their sequences. After the read confirmation the batch is validated again."""
    async with running() as node:
        topic = await node.topic()
        late = asyncio.create_task(node.append(topic, batch(1, sequence=1)))
        await asyncio.sleep(0)  # judged: a gap, its confirmation is on the way
        assert (await node.append(topic, batch(1, sequence=0))).base_offsets == [0]
        assert (await late).base_offsets == [1]


async def test_a_gap_on_a_leader_that_loses_leadership_is_not_reported():
    async with running() as node:
        topic = await node.topic()
        group_id = GroupId(topic.partitions[0].group_id)
        gap = asyncio.create_task(node.append(topic, batch(1, sequence=5)))
        await asyncio.sleep(0)
        node.lose_leadership(group_id, NodeId(2))
        result = await gap
        assert result.error.code == pb.NOT_LEADER
        assert result.error.leader.broker_id == 2


async def test_a_partly_written_batch_is_an_overlap_that_names_the_last_sequence():
    async with running() as node:
        topic = await node.topic()
        await node.append(topic, batch(10, sequence=0))
        result = await node.append(topic, batch(10, sequence=5))
        assert result.error.code == pb.SEQUENCE_OVERLAP
        assert result.error.last_sequence == 9


async def test_an_overlap_with_an_uncommitted_batch_waits_for_it():
    async with running() as node:
        topic = await node.topic()
        node.hold_commits = True
        original = asyncio.create_task(node.append(topic, batch(10, sequence=0)))
        await _turns()
        overlap = asyncio.create_task(node.append(topic, batch(10, sequence=5)))
        await _turns()
        assert not overlap.done()
        node.release_commits()
        assert (await overlap).error.code == pb.SEQUENCE_OVERLAP
        assert (await original).base_offsets == [0]


async def test_an_old_epoch_is_fenced():
    async with running() as node:
        topic = await node.topic()
        await node.append(topic, batch(1, sequence=0, epoch=2))
        result = await node.append(topic, batch(1, sequence=1, epoch=1))
        assert result.error.code == pb.PRODUCER_FENCED


async def test_leadership_lost_before_the_commit_is_an_unknown_outcome():
    async with running() as node:
        topic = await node.topic()
        node.hold_commits = True
        pending = asyncio.create_task(node.append(topic, batch(1, sequence=0)))
        await _turns()
        node.lose_leadership(GroupId(topic.partitions[0].group_id))
        result = await pending
        assert result.error.code == pb.LEADERSHIP_LOST
        assert result.error.outcome == pb.UNKNOWN_OUTCOME


async def test_a_retry_after_lost_leadership_is_validated_by_the_next_terms_applied_state():
    async with running() as node:
        topic = await node.topic()
        group_id = GroupId(topic.partitions[0].group_id)
        node.hold_commits = True
        lost = asyncio.create_task(node.append(topic, batch(2, sequence=0)))
        await _turns()
        node.lose_leadership(group_id)
        await lost
        node.release_commits()
        await _turns()
        node.campaign(group_id)
        await _turns()
        # its entry survived in the log, so the new term commits it: the retry is a duplicate
        assert (await node.append(topic, batch(2, sequence=0))).base_offsets == [0]
        assert node.partition(topic).high_watermark == 2


async def test_batches_of_a_lost_term_are_forgotten_by_the_next():
    """They were appended, never committed, and replaced by another leader's log. Their sequences are free again."""
    async with running() as node:
        topic = await node.topic()
        group_id = GroupId(topic.partitions[0].group_id)
        core = node.partition(topic).replica.core
        start, term = core.last_index, core.term
        node.hold_commits = True
        lost = [asyncio.create_task(node.append(topic, batch(1, sequence=number))) for number in range(5)]
        await _turns()
        assert core.last_index == start + 5
        node._held.clear()
        node.hold_commits = False
        newer = Term(term + 1)
        entry = Entry(LogIndex(start + 1), newer, EntryKind.EMPTY, Offset(0), 0, node.clock_ms, b"")
        core.step(
            AppendRequest(
                source=ReplicaId(99), target=core.replica_id, term=newer, prev_index=start, prev_term=term,
                entries=(entry,), commit_index=LogIndex(start + 1),
            )
        )  # fmt: skip
        node.mark_dirty(node.partition(topic).replica)
        assert {(await task).error.code for task in lost} == {pb.LEADERSHIP_LOST}
        node.campaign(group_id)
        await _turns()
        assert (await node.append(topic, batch(2, sequence=0))).base_offsets == [0]


async def test_a_timeout_after_proposing_is_an_unknown_outcome():
    async with running() as node:
        topic = await node.topic()
        node.hold_commits = True
        request = append_request(topic, batch(1, sequence=0))
        request.timeout_ms = 200  # long enough to be processed on a busy machine
        result = (await node.log.append(request, node.call())).partitions[0]
        assert result.error.code == pb.REQUEST_TIMED_OUT
        assert result.error.outcome == pb.UNKNOWN_OUTCOME
        node.release_commits()
        await _turns()
        assert (await node.append(topic, batch(1, sequence=0))).base_offsets == [0]


async def test_a_request_whose_deadline_has_passed_is_dropped_before_proposing():
    async with running() as node:
        topic = await node.topic()
        log = node.partition(topic)
        last = log.replica.core.last_index
        with pytest.raises(RequestError) as raised:
            await node.log.append(append_request(topic, batch(1)), node.call(-1))
        assert raised.value.code == pb.REQUEST_TIMED_OUT
        assert raised.value.detail.outcome == pb.NOT_APPLIED
        assert log.appends.begin([batch(1)], node.loop.time() - 1).result(0).error.outcome == pb.NOT_APPLIED
        assert log.replica.core.last_index == last


async def test_a_full_budget_throttles_and_nothing_is_appended():
    async with running(Limits(uncommitted_bytes_max=200)) as node:
        topic = await node.topic()
        node.hold_commits = True
        pending = asyncio.create_task(node.append(topic, batch(1, sequence=0, body=b"x" * 100)))
        await _turns()
        result = await node.append(topic, batch(1, sequence=1, body=b"x" * 100))
        assert result.error.code == pb.THROTTLED
        assert result.error.retry_after_ms > 0
        assert result.error.outcome == pb.NOT_APPLIED
        node.release_commits()
        assert (await pending).base_offsets == [0]
        assert (await node.append(topic, batch(1, sequence=1, body=b"x" * 100))).base_offsets == [1]


async def test_a_full_disk_refuses_as_retriable():
    async with running() as node:
        topic = await node.topic()
        node.refusal = RequestError(pb.DISK_FULL, "no room on node 1")
        result = await node.append(topic, batch(1))
        assert result.error.code == pb.DISK_FULL
        assert result.error.retriable


def _with(good: bytes, offset: int, layout: str, value: int) -> bytes:
    spoilt = bytearray(good)
    struct.pack_into(layout, spoilt, offset, value)
    return bytes(spoilt)


GOOD = batch(3, body=b"0123456789")
HOSTILE = {
    "empty": (b"", pb.CORRUPT_BATCH),
    "half a header": (GOOD[:30], pb.CORRUPT_BATCH),
    "header only": (GOOD[:64], pb.CORRUPT_BATCH),
    "truncated body": (GOOD[:-1], pb.CORRUPT_BATCH),
    "trailing bytes": (GOOD + b"\0", pb.CORRUPT_BATCH),
    "wrong magic": (_with(GOOD, 0, "<H", 0xDEAD), pb.CORRUPT_BATCH),
    "messages of a queue": (seal_queue_batch(encode(MessageColumns([b"hi"])), message_count=1), pb.TOPIC_KIND_MISMATCH),
    "unknown version": (_with(GOOD, 2, "<B", 99), pb.UNSUPPORTED_VERSION),
    "unknown codec": (_with(GOOD, 3, "<B", 9), pb.UNSUPPORTED_COMPRESSION),
    "no records": (_with(GOOD, 8, "<I", 0), pb.CORRUPT_BATCH),
    "a lying count": (_with(GOOD, 8, "<I", 4), pb.CORRUPT_BATCH),
    "four billion records": (_with(GOOD, 8, "<I", 0xFFFFFFFF), pb.RECORD_TOO_LARGE),
    "a body of 4 GiB, it says": (_with(GOOD, 12, "<I", 0xFFFFFFFF), pb.CORRUPT_BATCH),
    "4 GiB when decompressed": (_with(GOOD, 16, "<I", 0xFFFFFFFF), pb.RECORD_TOO_LARGE),
    "a flipped bit": (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), pb.CORRUPT_BATCH),
    "a wrong CRC": (_with(GOOD, 60, "<I", 1), pb.CORRUPT_BATCH),
    "a sequence past 64 bits": (_with(GOOD, 52, "<Q", (1 << 64) - 1), pb.CORRUPT_BATCH),
    "oversized": (batch(1, body=b"x" * 5000), pb.RECORD_TOO_LARGE),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_batches_are_refused_by_type_before_anything_is_proposed(name):
    data, code = HOSTILE[name]
    async with running() as node:
        topic = await node.topic(max_batch_bytes="4096")
        log = node.partition(topic)
        last = log.replica.core.last_index
        result = await node.append(topic, data)
        assert result.error.code == code, result.error
        assert result.error.outcome == pb.NOT_APPLIED
        assert not result.error.retriable
        assert log.replica.core.last_index == last
        assert (await node.append(topic, GOOD)).base_offsets == [0]


async def test_the_largest_batch_follows_the_topics_configuration_immediately():
    async with running() as node:
        topic = await node.topic(max_batch_bytes="2000")
        big = batch(1, body=b"x" * 3000)
        assert (await node.append(topic, big)).error.code == pb.RECORD_TOO_LARGE
        request = pb.AlterTopicRequest(name="flights", set={"max.batch.bytes": "4000"})
        await node.admin.alter_topic(request, node.call())
        assert (await node.append(topic, big)).base_offsets == [0]


async def test_a_recent_read_starts_at_the_batch_that_holds_the_offset():
    async with running() as node:
        topic = await node.topic()
        log = node.partition(topic)
        await node.append(topic, batch(3, sequence=0), batch(3, sequence=3), batch(3, sequence=6))
        assert [e.base_offset for e in await log.read(4, 1 << 20)] == [3, 6]
        assert [e.base_offset for e in await log.read(0, 1)] == [0]
        assert await log.read(9, 1 << 20) == []
        assert node.reads_in_thread == 0


async def test_a_cold_sequential_read_searches_its_position_once():
    async with running(recent_bytes_max=1) as node:
        topic = await node.topic()
        log = node.partition(topic)
        for number in range(20):
            await node.append(topic, batch(2, sequence=2 * number))
        await log.delete_records(0, node.loop.time() + 5)  # a command in between, and the newest entry held
        found, offset, threads = [], 0, []
        while offset < log.high_watermark:
            entries = await log.read(offset, 200)
            found += [entry.base_offset for entry in entries]
            offset = entries[-1].next_offset
            threads.append(node.reads_in_thread)
        assert found == list(range(0, 40, 2))
        # the first read has to find its offset, each later one only reads
        assert threads[0] == 2
        assert all(after - before == 1 for before, after in itertools.pairwise(threads))


async def test_a_cold_reader_skips_commands_after_the_last_batch(monkeypatch):
    """Reading every commit since the last batch would take longer than a poll lasts."""
    async with running(recent_bytes_max=1) as node:
        topic = await node.topic()
        log = node.partition(topic)
        await node.append(topic, batch(2, sequence=0))
        log.replica.log.clear()
        assert [entry.base_offset for entry in await log.read(0, 200)] == [0]
        deadline = node.loop.time() + 10
        for number in range(300):
            await log.offsets.commit(CommitOffset("g", "", 0, number % 2), deadline)
        await node.append(topic, batch(2, sequence=2), batch(2, sequence=4))
        log.replica.log.clear()
        read = []
        entries = node.store.entries
        monkeypatch.setattr(
            node.store, "entries", lambda *named: (found := entries(*named), read.append(len(found)))[0]
        )
        assert (await log.read(2, 200))[0].base_offset == 2
        assert sum(read) < 50


def keep_entries(monkeypatch, count):
    """Let the tail have so many entries: each counts as a mebibyte, beside which its payload is nothing."""
    monkeypatch.setattr(log_marks, "ENTRY_BYTES", 1 << 20)
    monkeypatch.setattr(log_marks, "MARK_BYTES", 1)
    monkeypatch.setattr(log_tail, "TAIL_BYTES", count << 20)
    monkeypatch.setattr(log_tail, "WORTH_BYTES", 1 << 40)


async def test_commands_before_the_first_record_are_truncated(monkeypatch):
    """A partition that gets only commits must not grow without bound."""
    monkeypatch.setattr(log_tail, "TAIL_ENTRIES", 10)
    keep_entries(monkeypatch, 10)
    async with running() as node:
        topic = await node.topic()
        log = node.partition(topic)
        replica = log.replica
        await node.append(topic, batch(5))
        await log.delete_records(-1, node.loop.time() + 5)
        await truncate(log)
        assert replica.log_start.index > 6
        deadline = node.loop.time() + 10
        for number in range(100):
            await log.offsets.commit(CommitOffset("g", "", 0, number % 2), deadline)
        index = await truncation_index(log)
        assert index == replica.durable_state_index - 10
        await truncate(log)
        assert await truncation_index(log) is None, "too few rows to be worth a write"
        for number in range(9):
            await log.offsets.commit(CommitOffset("g", "", 0, number % 2), deadline)
        assert await truncation_index(log) is None
        await node.append(topic, batch(5, sequence=5))
        for number in range(50):
            await log.offsets.commit(CommitOffset("g", "", 0, number % 2), deadline)
        index = await truncation_index(log)
        assert index is not None
        (first,) = await log.read(5, 1)
        assert index == first.index - 1, "the commands before the record, and nothing more"


async def truncate(log):
    """Truncate the log as housekeeping does."""
    index = await truncation_index(log)
    log.replica.core.compacted(await log.replica.find_position(index))


async def truncation_index(log):
    """Return the truncation index as if the whole applied state were durable."""
    log.replica.durable_state_index = log.replica.core.applied_index
    return await log.truncation_index()


async def test_uncommitted_records_cannot_be_read():
    async with running() as node:
        topic = await node.topic()
        await node.append(topic, batch(1, sequence=0))
        node.hold_commits = True
        pending = asyncio.create_task(node.append(topic, batch(1, sequence=1)))
        await _turns()
        log = node.partition(topic)
        assert [e.base_offset for e in await log.read(0, 1 << 20)] == [0]
        assert log.high_watermark == 1
        node.release_commits()
        await pending
        assert [e.base_offset for e in await log.read(0, 1 << 20)] == [0, 1]


async def test_deleted_records_are_out_of_range_with_the_new_start():
    async with running() as node:
        topic = await node.topic()
        log = node.partition(topic)
        await node.append(topic, batch(5, sequence=0), batch(5, sequence=5))
        assert await log.delete_records(5, node.loop.time() + 5) == 5
        with pytest.raises(RequestError) as raised:
            await log.read(4, 1 << 20)
        assert raised.value.code == pb.OFFSET_OUT_OF_RANGE
        assert (raised.value.detail.log_start_offset, raised.value.detail.high_watermark) == (5, 10)
        assert [e.base_offset for e in await log.read(5, 1 << 20)] == [5]
        assert await log.delete_records(-1, node.loop.time() + 5) == 10
        with pytest.raises(RequestError) as raised:
            await log.delete_records(11, node.loop.time() + 5)
        assert raised.value.code == pb.OFFSET_OUT_OF_RANGE


async def test_truncation_stops_before_the_batch_that_holds_the_start():
    async with running() as node:
        topic = await node.topic()
        log = node.partition(topic)
        await node.append(topic, batch(5, sequence=0), batch(5, sequence=5))
        assert await log.truncation_index() is None
        await log.delete_records(7, node.loop.time() + 5)
        index = await log.truncation_index()
        assert index is not None
        assert log.replica.log.recent.get(index + 1).base_offset == 5
        await log.delete_records(-1, node.loop.time() + 5)
        assert await log.truncation_index() == log.replica.core.applied_index


async def test_retention_by_time_trims_an_idle_partition_and_keeps_young_records():
    async with running() as node:
        topic = await node.topic(retention_ms="10000")
        log = node.partition(topic)
        await node.append(topic, batch(5, sequence=0))
        node.clock_ms += 8_000
        await node.append(topic, batch(5, sequence=5))
        await log.retention.enforce()
        assert log.log_start_offset == 0
        node.clock_ms += 5_000
        await log.retention.enforce()
        assert log.log_start_offset == 5
        node.clock_ms += 10_000
        await log.retention.enforce()
        assert log.log_start_offset == 10
        assert (await node.append(topic, batch(1, sequence=10))).base_offsets == [10]


async def test_a_clock_outside_the_majority_expires_no_records():
    async with running() as node:
        topic = await node.topic(retention_ms="10000")
        log = node.partition(topic)
        await node.append(topic, batch(3, sequence=0))
        node.trusts_clock = False
        node.clock_ms += 720_000_000
        await log.retention.enforce()
        assert log.log_start_offset == 0
        node.trusts_clock = True
        await log.retention.enforce()
        assert log.log_start_offset == 3


async def test_a_record_exactly_as_old_as_retention_allows_stays():
    async with running() as node:
        topic = await node.topic(retention_ms="10000")
        log = node.partition(topic)
        await node.append(topic, batch(5, sequence=0))
        node.clock_ms += 10_000
        await log.retention.enforce()
        assert log.log_start_offset == 0
        node.clock_ms += 1
        await log.retention.enforce()
        assert log.log_start_offset == 5


async def test_retention_continues_from_a_start_inside_a_batch():
    """DeleteRecords may end inside a batch, but retention deletes whole batches."""
    async with running() as node:
        topic = await node.topic(retention_ms="10000")
        log = node.partition(topic)
        await node.append(topic, batch(5, sequence=0))
        node.clock_ms += 6_000
        await node.append(topic, batch(5, sequence=5))
        await log.delete_records(2, node.loop.time() + 5)
        node.clock_ms += 3_000
        await log.retention.enforce()
        assert log.log_start_offset == 2
        node.clock_ms += 2_000
        await log.retention.enforce()
        assert log.log_start_offset == 5


async def test_unlimited_retention_deletes_nothing():
    async with running() as node:
        topic = await node.topic(retention_ms="-1", retention_bytes="-1")
        log = node.partition(topic)
        await node.append(topic, batch(5, sequence=0))
        node.clock_ms += 10**13
        await log.retention.enforce()
        assert log.log_start_offset == 0


async def test_retention_by_size_keeps_at_least_the_limit():
    async with running() as node:
        node.trusts_clock = False  # sizes need no clock
        topic = await node.topic(retention_bytes="500000", retention_ms="-1")
        log = node.partition(topic)
        one = len(batch(1, body=b"x" * 10_000))
        for number in range(100):
            await node.append(topic, batch(1, sequence=number, body=b"x" * 10_000))
        await log.retention.enforce()
        kept = (log.high_watermark - log.log_start_offset) * one
        assert 500_000 <= kept <= 500_000 + 2 * 64 * 1024
        for number in range(100, 200):  # now the marks grow with the applied entries
            await node.append(topic, batch(1, sequence=number, body=b"x" * 10_000))
        await log.retention.enforce()
        kept = (log.high_watermark - log.log_start_offset) * one
        assert 500_000 <= kept <= 500_000 + 2 * 64 * 1024


async def test_retention_is_enforced_by_the_leader_alone():
    async with running() as node:
        topic = await node.topic(retention_ms="1000")
        log = node.partition(topic)
        await node.append(topic, batch(5, sequence=0))
        node.clock_ms += 60_000
        node.lose_leadership(GroupId(topic.partitions[0].group_id))
        await log.retention.enforce()
        assert log.log_start_offset == 0


async def test_damage_found_by_a_read_is_reported_and_never_served():
    async with running(recent_bytes_max=1) as node:
        topic = await node.topic()
        log = node.partition(topic)
        reported = []
        log._on_damage = lambda replica, error: reported.append(replica.group_id)
        await node.append(topic, batch(1, sequence=0))
        await node.append(topic, batch(1, sequence=1))
        node.store.damage(log.replica.key)
        with pytest.raises(RequestError) as raised:
            await log.read(0, 1 << 20)
        assert raised.value.code == pb.REPLICA_QUARANTINED
        assert reported == [log.replica.group_id]


async def test_a_cancelled_cold_read_stays_cancelled_after_a_concurrent_trim(monkeypatch):
    """The reader's cancellation was replaced by an answer, and the caller that had cancelled it waited."""
    async with running(recent_bytes_max=1) as node:
        topic = await node.topic()
        log = node.partition(topic)
        for number in range(3):
            await node.append(topic, batch(1, sequence=number))

        async def trimmed_meanwhile(function, *arguments):
            await log.delete_records(2, node.loop.time() + 10)
            raise asyncio.CancelledError

        monkeypatch.setattr(log, "in_thread", trimmed_meanwhile)
        with pytest.raises(asyncio.CancelledError):
            await log.read(0, 1 << 20)


async def test_a_reader_of_an_earlier_group_is_told_of_the_records_that_a_recovery_lost(monkeypatch):
    async with running() as node:
        topic = await node.topic()
        log = node.partition(topic)
        await node.append(topic, batch(5, sequence=0))
        ends = {(log.replica.group_id, 99): 3}
        monkeypatch.setattr(Metadata, "kept_end_offset", lambda self, *groups: ends.get(groups))
        log.check_reader(5, log.replica.group_id)
        log.check_reader(3, 99)
        with pytest.raises(RequestError, match="from offset 3 on were lost") as raised:
            log.check_reader(4, 99)
        assert raised.value.code == pb.OFFSET_OUT_OF_RANGE
        assert raised.value.detail.kept_end_offset == 3
