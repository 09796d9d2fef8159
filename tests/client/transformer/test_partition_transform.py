"""A partition's transform at critical moments: successors, late predecessors, and brokers that forget producers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from raftmq import errors
from raftmq.client.base import settings
from raftmq.client.transformer import partition_transform
from raftmq.client.transformer.handler_calls import Handled
from raftmq.client.transformer.output_state import OutputState
from raftmq.client.transformer.partition_transform import producer_name_of
from raftmq.client.transformer.routing import MadeOutput, Stretch
from raftmq.types import Record, TopicPartition

from tests.support.client.transform_world import DAY_S, Owner, World, made, settled


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Return one output for each record, to a topic with one partition."""
    world = World(random.Random(1), lost_answers=0.0, handler=lambda record: [made("out", str(record.offset))])
    world.create("out", 1)
    monkeypatch.setattr(settings, "RETRY_BACKOFF_MIN_SECONDS", 0.0)
    monkeypatch.setattr(settings, "RETRY_BACKOFF_MAX_SECONDS", 0.0)
    monkeypatch.setattr(settings, "TRANSFORM_AHEAD_RECORDS", 20)
    monkeypatch.setattr(partition_transform, "_now_s", lambda: world.now_s)
    return world


def values(world: World, name: str = "out", partition: int = 0) -> list[str]:
    return [value for value, _, _ in world.topics[name].partitions[partition].records]


def names(start: int, end: int) -> list[str]:
    return [str(number) for number in range(start, end)]


async def done(owner: Owner, count: int) -> None:
    """Write, read and commit records."""
    world = owner.world
    world.write(count)
    owner.read(len(world.records))
    await settled(world, lambda: world.committed is not None and world.committed[0] == len(world.records))


async def ended(owner: Owner) -> None:
    owner.transform.end()
    await asyncio.wait((owner.task,))


def state_of(world: World) -> OutputState:
    assert world.committed is not None
    state = OutputState.decode(world.committed[1])
    assert state is not None
    return state


async def crash_uncommitted(owner: Owner, count: int) -> None:
    """Write the outputs of some records, and end the owner before it commits."""
    world = owner.world
    committed, written = world.committed, len(world.written())
    world.write(count)
    owner.read(count)
    await settled(world, lambda: len(world.written()) == written + count)
    owner.crash()
    while world.tasks:
        await asyncio.wait(list(world.tasks))
    world.committed = committed


async def test_outputs_written_and_not_committed_are_not_written_again(world: World) -> None:
    owner = world.assign()
    await done(owner, 5)
    await crash_uncommitted(owner, 4)
    successor = world.assign()
    await done(successor, 3)
    assert values(world) == names(0, 12)
    await ended(successor)


async def test_an_orderly_end_lowers_the_bound_to_the_offset(world: World) -> None:
    owner = world.assign()
    await done(owner, 5)
    assert state_of(world).until == 25
    await owner.release()
    assert state_of(world).until == 5


async def test_a_changed_number_of_partitions_is_used_when_no_predecessor_can_write_any_more(world: World) -> None:
    """Otherwise a record could have outputs in two partitions: the former one, and the one to which its key belongs now."""
    owner = world.assign()
    world.handler = lambda record: [made("out", str(record.offset), b"key of 2")]
    await done(owner, 2)
    await crash_uncommitted(owner, 2)
    world.grow("out", 7)
    successor = world.assign()
    await done(
        successor, 18
    )  # it found the bound 22: two records were committed, and outputs of twenty more may be written
    await done(successor, 1)
    assert values(world) == names(0, 22)
    assert [value for number in range(1, 7) for value in values(world, partition=number)] == ["22"]
    await ended(successor)


async def test_a_bound_never_falls_while_records_are_handled(world: World) -> None:
    """Otherwise the next owner would believe that it has passed all records whose outputs this one may have written."""
    owner = world.assign()
    await done(owner, 2)
    await crash_uncommitted(owner, 2)
    successor = world.assign()
    await done(successor, 3)
    bound = state_of(world).until
    world.grow("out", 7)  # must not be used yet
    await done(successor, 1)
    assert state_of(world).until >= bound
    await ended(successor)


async def test_a_changed_number_of_partitions_is_not_used_in_a_repeated_attempt_at_a_chunk(world: World) -> None:
    """A topic is created again while a chunk is written. The outputs in the other topics stay valid."""
    world.create("other", 1)
    world.handler = lambda record: [
        made("out", str(record.offset), b"key of 2"),
        made("other", str(record.offset)),
    ]
    owner = world.assign()
    await done(owner, 1)
    append = owner.transform._append

    async def append_late(stretches: Sequence[Stretch]) -> None:
        owner.transform._append = append  # type: ignore[method-assign]
        world.create("other", 1)
        world.grow("out", 7)
        await append(stretches)

    owner.transform._append = append_late  # type: ignore[method-assign]
    await done(owner, 1)
    assert values(world) == ["0", "1"]
    assert [values(world, partition=number) for number in range(1, 7)] == [[]] * 6
    assert values(world, "other") == ["1"]
    await ended(owner)


async def test_the_first_owner_uses_a_changed_number_of_partitions_immediately(world: World) -> None:
    owner = world.assign()
    world.handler = lambda record: [made("out", str(record.offset), b"key of 2")]
    await done(owner, 1)
    world.grow("out", 7)
    await done(owner, 1)
    assert values(world) == ["0"]
    await ended(owner)


async def test_a_topic_that_is_created_again_gets_the_uncommitted_outputs(world: World) -> None:
    owner = world.assign()
    await done(owner, 5)
    world.create("out", 1)
    await done(owner, 2)
    assert values(world) == ["5", "6"]
    assert len(state_of(world).topics) == 2
    await ended(owner)


async def test_a_deleted_topic_ends_the_transform(world: World) -> None:
    owner = world.assign()
    await done(owner, 5)
    del world.topics["out"]
    world.write(1)
    owner.read(1)
    await asyncio.wait((owner.task,))
    assert isinstance(owner.failure, errors.UnknownTopicError)


async def test_a_partition_that_forgot_the_producer_continues_under_another_epoch(world: World) -> None:
    """A predecessor that wakes up with a sequence of the old count is refused, although it would fit into the new count."""
    owner = world.assign()
    await done(owner, 3)
    world.now_s += 20 * DAY_S
    old = state_of(world)
    await done(owner, 5)
    assert values(world) == names(0, 8)
    state = state_of(world)
    assert state.at(1, 0).restarts == 1
    assert state.at(1, 0).count == 5
    zombie = world.assign()
    await settled(world, lambda: zombie.transform._state is not None)
    zombie.transform._state = old.written(1, 0, 2)  # it would append number 5
    with pytest.raises(errors.ProducerFencedError):
        await zombie.transform._append_one(_stretch(world))
    zombie.crash()
    await ended(owner)


def _stretch(world: World) -> Stretch:
    return Stretch(world.topics["out"].info, 0, 7, [made("out", "late").cells])


async def test_outputs_that_brokers_may_have_forgotten_are_not_written_again(world: World) -> None:
    owner = world.assign()
    await done(owner, 3)
    await crash_uncommitted(owner, 2)
    world.now_s += 20 * DAY_S
    successor = world.assign()
    await asyncio.wait((successor.task,))
    assert isinstance(successor.failure, errors.TransformStateError)
    assert "reset the offsets of group 'group' to 3" in str(successor.failure)
    world.reset(5)
    await done(world.assign(), 1)
    assert values(world) == names(0, 6)


async def test_outputs_of_young_records_can_be_verified(world: World) -> None:
    """This holds even if the group was inactive for long: outputs cannot be older than their records."""
    owner = world.assign()
    await done(owner, 3)
    owner.crash()
    world.now_s += 20 * DAY_S
    successor = world.assign()
    await done(successor, 2)
    assert values(world) == names(0, 5)
    await ended(successor)


async def test_a_member_that_lost_the_partition_cannot_fence_its_successor(world: World) -> None:
    """Both owners begin. The one that does so later is refused, although its call arrives last."""
    first, second = world.assign(), world.assign()
    await done(second, 1)
    with pytest.raises(errors.ProducerFencedError):
        await first.transform._name.claim(first.owner_epoch << 16, 1.0)
    await done(second, 1)
    assert values(world) == ["0", "1"]
    await ended(first)
    assert first.failure is None
    await ended(second)


async def test_after_a_reset_former_owners_write_nothing(world: World) -> None:
    before = world.assign()
    await done(before, 3)
    world.reset(1)
    after = world.assign()
    after.read(2)
    await settled(world, lambda: len(values(world)) == 5)
    with pytest.raises(errors.ProducerFencedError):
        await before.transform._append_one(_stretch(world))
    assert values(world) == ["0", "1", "2", "1", "2"]
    await ended(before)
    await ended(after)


async def test_records_deleted_before_they_were_read_are_skipped(world: World) -> None:
    owner = world.assign()
    await done(owner, 3)
    await owner.release()
    world.write(4)
    world.log_start = 5
    successor = world.assign()
    successor.read(2)
    await settled(world, lambda: world.committed is not None and world.committed[0] == 7)
    assert values(world) == ["0", "1", "2", "5", "6"]
    assert state_of(world).generation == owner.owner_epoch
    await ended(successor)


async def test_a_new_generation_begins_when_records_with_possible_outputs_are_deleted(world: World) -> None:
    owner = world.assign()
    await done(owner, 3)
    await crash_uncommitted(owner, 4)
    world.log_start = 9
    world.write(4)
    successor = world.assign()
    successor.read(2)
    await settled(world, lambda: world.committed is not None and world.committed[0] == 11)
    assert values(world) == [*names(0, 7), "9", "10"]
    assert state_of(world).generation == successor.owner_epoch
    await ended(successor)


async def test_a_failed_record_stops_the_transform_after_the_records_before_it(world: World) -> None:
    owner = world.assign()

    async def handle(records: list[Record]) -> Handled:
        outputs: list[tuple[MadeOutput, ...]] = [(made("out", str(record.offset)),) for record in records[:2]]
        return Handled(outputs, ValueError("no"))

    owner.handle = handle  # type: ignore[method-assign]
    world.write(5)
    owner.read(5)
    await asyncio.wait((owner.task,))
    error = owner.failure
    assert isinstance(error, errors.PoisonRecordError)
    assert (error.topic, error.partition, error.offset) == ("in", 3, 2)
    assert isinstance(error.__cause__, ValueError)
    assert values(world) == ["0", "1"]
    assert world.committed is not None
    assert world.committed[0] == 2


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (made("out", "x", partition=5), errors.UnknownPartitionError),
        (made("out", "x" * 2_000_000), errors.RecordTooLargeError),
    ],
)
async def test_an_output_that_cannot_be_written_names_the_record(
    world: World, output: MadeOutput, cause: type[Exception]
) -> None:
    world.handler = lambda record: [output] if record.offset == 1 else [made("out", str(record.offset))]
    owner = world.assign()
    world.write(3)
    owner.read(3)
    await asyncio.wait((owner.task,))
    assert isinstance(owner.failure, errors.PoisonRecordError)
    assert "in/3 offset 1 " in str(owner.failure)
    assert isinstance(owner.failure.__cause__, cause)
    assert values(world) == ["0"]


async def test_a_foreign_note_is_no_state_and_a_newer_version_is_refused(world: World) -> None:
    world.write(3)
    world.committed = (1, "something else")
    owner = world.assign()
    owner.read(2)
    await settled(world, lambda: len(values(world)) == 2)
    assert values(world) == ["1", "2"]
    await ended(owner)
    assert world.committed is not None
    world.committed = (3, world.committed[1].replace("/1:", "/2:"))
    newer = world.assign()
    await asyncio.wait((newer.task,))
    assert isinstance(newer.failure, errors.TransformStateError)


def test_the_producer_name_fits_for_any_names_of_group_and_topic() -> None:
    assert producer_name_of("g", TopicPartition("t", 7)) == "transformer/g/t/7"
    long = [producer_name_of("g" * 249, TopicPartition("t", number)) for number in range(2)]
    assert len(set(long)) == 2
    assert all(len(name) <= settings.NAME_BYTES_MAX for name in long)


async def test_records_that_take_offsets_of_lost_ones_have_outputs(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The sequences of the lost records' outputs are used, and brokers would take the new outputs for repetitions."""
    world.handler = lambda record: [made("out", (record.value or b"").decode())]
    owner = world.assign()
    await done(owner, 5)
    await crash_uncommitted(owner, 6)
    world.recover(8, world.committed)
    successor = world.assign()
    await done(successor, 4)
    assert values(world) == [f"1/{n}" for n in range(11)] + [f"2/{n}" for n in range(8, 12)]
    assert state_of(world).group_id == 2
    assert "transform_input_recovered topic=in partition=3 offset=5 kept_end_offset=8" in caplog.text
    await crash_uncommitted(successor, 2)
    after = world.assign()
    await done(after, 1)
    assert values(world)[-3:] == ["2/12", "2/13", "2/14"]
    await ended(after)


async def test_a_recovery_at_the_committed_offset_begins_new_counts(world: World) -> None:
    world.handler = lambda record: [made("out", (record.value or b"").decode())]
    owner = world.assign()
    await done(owner, 5)
    await crash_uncommitted(owner, 3)
    world.recover(5, world.committed)
    await done(world.assign(), 2)
    assert values(world)[5:] == ["1/5", "1/6", "1/7", "2/5", "2/6"]


async def test_an_owner_that_has_read_lost_records_goes_back(world: World) -> None:
    """Its own later commits are lost. It crashes after it has handled new records, and none of them is written twice."""
    world.handler = lambda record: [made("out", (record.value or b"").decode())]
    owner = world.assign()
    await done(owner, 5)
    kept = world.committed
    await done(owner, 5)
    world.recover(7, kept)
    world.write(2)
    owner.read(2)
    await settled(world, lambda: "2/7" in values(world))
    committed = world.committed
    owner.crash()
    while world.tasks:
        await asyncio.wait(list(world.tasks))
    world.committed = committed
    await done(world.assign(), 3)
    assert values(world) == [f"1/{n}" for n in range(10)] + [f"2/{n}" for n in range(7, 12)]


async def test_a_commit_that_a_recovery_refuses_ends_nothing(world: World) -> None:
    """The consumer goes back, and the commits with it."""
    owner = world.assign()
    await done(owner, 5)
    world.write(6)
    owner.read(6)
    await settled(world, lambda: len(values(world)) == 11)
    world.recover(8, world.committed)
    for _ in range(20):
        await asyncio.sleep(0)
    await done(owner, 2)
    assert owner.failure is None
    assert values(world)[11:] == ["8", "9"]
    await ended(owner)


async def test_an_owner_does_not_handle_records_that_a_recovery_has_lost(world: World) -> None:
    world.handler = lambda record: [made("out", (record.value or b"").decode())]
    owner = world.assign()
    await done(owner, 5)
    world.write(6)
    owner.read(6)
    world.recover(8, world.committed)
    world.write(2)
    owner.read(2)
    await settled(world, lambda: world.committed is not None and world.committed[0] == 10)
    assert values(world)[-2:] == ["2/8", "2/9"]
    assert owner.failure is None
    await ended(owner)


async def test_a_recovery_that_a_successor_meets_while_it_repeats_records(world: World) -> None:
    """It has read no lost record, so nobody refuses its polls, but the outputs of its predecessor used the sequences."""
    world.handler = lambda record: [made("out", (record.value or b"").decode())]
    owner = world.assign()
    await done(owner, 5)
    await crash_uncommitted(owner, 5)
    successor = world.assign()
    successor.read(2)
    await settled(world, lambda: world.committed is not None and world.committed[0] == 7)
    world.recover(8, world.committed)
    await done(successor, 3)
    assert values(world) == [f"1/{n}" for n in range(10)] + [f"2/{n}" for n in range(8, 11)]
    await ended(successor)


async def test_a_crash_between_a_new_claim_and_its_commit_fences_nobody(world: World) -> None:
    owner = world.assign()
    await done(owner, 5)
    await crash_uncommitted(owner, 5)
    world.recover(8, world.committed)
    successor = world.assign()
    generation = successor.owner_epoch
    successor.read(3)
    await settled(world, lambda: world.batch_epoch_min(state_of(world).producer_id) >= generation << 16)
    successor.crash()
    await done(world.assign(), 2)
    assert values(world) == names(0, 10) + names(8, 10)


def test_a_note_of_an_earlier_version_names_no_group() -> None:
    state = OutputState(1, 2, 3, 4)
    assert OutputState.decode(state.encode()) == state
    named = replace(state, group_id=300)
    assert named.encode().startswith(state.encode()[:-3])
    assert OutputState.decode(named.encode()) == named
