"""Commands: their checks before proposing, and bytes that are no commands."""

import random

import msgspec
import pytest
from raftmq.fsm.queue import commands as qc
from raftmq.fsm.queue.enqueued import encode_chain, read_entry
from raftmq.fsm.queue.levels import DUE_LEVEL, ITEM_LEVELS, LEASE_NUMBERS_LEVEL, queue_level
from raftmq.fsm.queue.limits import HOUSEKEEPING_MAX
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.settings import QueueSettings, backoff_ms, validate_settings
from raftmq.fsm.state_machine import UnsupportedCommandError
from raftmq.queue_batch import encode, seal_queue_batch
from raftmq.raft.entry import EntryKind

from tests.support.fsm.queue.histories import history
from tests.support.fsm.queue.host import QueueHost, QueueLog, messages
from tests.support.fsm.queue.recount import State, recount

SETTLE = qc.Settle(1, 1, (1,), (5,), (2,), (1,))
CHAIN = qc.Chain(1, 1, (5,), (1,), (1,))


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (qc.Lease(1, 1, 0, 10), "at least 1"),
        (qc.Lease(1, 1, 1, 0), "at least 1"),
        (qc.Lease(1, 1, 1, 10, tuple("abcdefghijklmnopq")), "at most 16 tenants"),
        (qc.Lease(1, 1, 1, 10, ("a", "b"), b"k"), "exactly one tenant"),
        (qc.Lease(1, 1, 1, 10, ("a..b",)), "no tenant"),
        (qc.Settle(1, 1, (1, 1), (5,), (2,), (1,)), "different lengths"),
        (qc.Settle(1, 1, (9,), (5,), (2,), (1,)), "operation is unknown"),
        (qc.Settle(1, 1, (1,), (5,), (0,), (1,)), "at least one message"),
        (qc.Settle(1, 1, (1,), (5,), (1,), (1,), (1,)), "arguments that are not there"),
        (qc.Settle(1, 1, (1,), (5,), (1,), (1,), (1,), (qc.SettleDetail(error="e" * 1025),)), "1024"),
        (qc.Settle(1, 1, (1,), (5,), (1,), (1,), (1,), (qc.SettleDetail(delay_ms=-2),)), "delay"),
        (qc.Settle(1, 1, (1,), (5,), (1,), (1,), (1,), (qc.SettleDetail(),) * 18), "1 runs have 18 arguments"),
        (qc.Change((qc.ChangeItem(7, 1),)), "operation 7"),
        (qc.Change((qc.ChangeItem(1, 1, b"i" * 250),)), "249"),
        (qc.Change((qc.ChangeItem(1, 1, priority=2**31),)), "32-bit"),
        (qc.Change((qc.ChangeItem(1, 1, version=2**32),)), "a version is between 0 and 4294967295"),
        (qc.StartJob(9), "kind of job 9"),
        (qc.ContinueJob(1, 0), "at least 1"),
        (qc.PutSchedule("", b"", 1), "1 to 249"),
        (qc.PutSchedule("s", b"x" * 70_000, 1), "65536"),
        (qc.PutSchedule("s", b"", -3), "out of range"),
        (qc.DeleteSchedule("s" * 250), "1 to 249"),
        (qc.SkipFirings("s", 1, 5, 5, 1), "later firing"),
        (qc.SkipFirings("s", 1, 5, 6, 0), "later firing"),
        (qc.Configure(QueueSettings(fairness="loud")), "fairness is 'loud'"),
        (qc.Configure(QueueSettings(attempts_max=-1)), "attempts_max is -1"),
        (qc.PauseTenant("a." * 9 + "a"), "at most 8 levels"),
    ],
    ids=repr,
)
def test_what_would_break_a_bound_is_refused_before_it_is_proposed(item: qc.Item, reason: str) -> None:
    assert reason in (qc.validate_commands(qc.Commands((item,))) or "")


LARGEST = (1 << 64) - 1


@pytest.mark.parametrize(
    "item",
    [
        qc.Settle(LARGEST, LARGEST, (4,) * 500, (LARGEST,) * 500, (1,) * 500, (LARGEST,) * 500, (500,) * 500),
        qc.Settle(1, 1, (2,) * 9, (1,) * 9, (1,) * 9, (1,) * 9, (9,) * 9, (qc.SettleDetail(error="\u20ac" * 300),) * 9),
        qc.Lease(LARGEST, LARGEST, 500, LARGEST, bytes_max=LARGEST),
        qc.Lease(1, 1, 500, 1, ("\u20ac" * 80,) * 16),
        qc.PutSchedule("s" * 249, bytes(65_536), LARGEST, is_paused=True, version=LARGEST >> 1),
        qc.Change((qc.ChangeItem(1, 1, b"i" * 249),) * 500),
    ],
    ids=lambda item: type(item).__name__,
)
def test_the_size_of_a_command_is_known_before_it_is_encoded(item: qc.Item) -> None:
    encoded = len(qc.encode_commands(qc.Commands((item,)))) - len(qc.encode_commands(qc.Commands(())))
    assert encoded <= qc.bytes_bound(item) <= 1.5 * encoded + qc.SETTLE_BYTES


def test_one_entry_names_a_bounded_number_of_messages() -> None:
    lease = qc.Lease(1, 1, 250, 1000)
    assert qc.validate_commands(qc.Commands((lease, lease))) is None
    assert "501 messages" in (qc.validate_commands(qc.Commands((lease, lease, qc.Tick()))) or "")


def test_what_a_client_may_ask_is_accepted() -> None:
    items = (
        qc.Lease(1, 1, 1, 1, ("a.b",), b"k"), SETTLE, qc.Change((qc.ChangeItem(1, 1),)), qc.StartJob(qc.JobKind.PURGE),
        qc.ContinueJob(1, 1), qc.PutSchedule("s", b"", 0), qc.Configure(QueueSettings()), qc.PauseTenant(""), qc.OpenSession(),
    )  # fmt: skip
    assert qc.validate_commands(qc.Commands(items, 5, 7)) is None


def test_every_item_has_a_level_and_comes_back() -> None:
    assert set(ITEM_LEVELS) == set(qc.Item.__args__)
    commands = qc.Commands((SETTLE, qc.Tick()), expire_before=4, jitter_seed=9)
    payload = qc.encode_commands(commands)
    assert qc.decode_commands(payload) == commands
    assert queue_level(payload) == 2
    assert queue_level(qc.encode_commands(qc.Commands(()))) == 2


def test_a_number_of_due_messages_needs_a_later_level() -> None:
    commands = qc.Commands((SETTLE, qc.Tick()), due_max=HOUSEKEEPING_MAX)
    assert queue_level(qc.encode_commands(commands)) == DUE_LEVEL
    assert qc.validate_commands(commands) is None
    assert "due_max is between 0 and 500" in (qc.validate_commands(qc.Commands((), due_max=501)) or "")


def test_a_number_after_which_leases_are_numbered_needs_a_later_level() -> None:
    commands = qc.Commands((qc.Tick(),), lease_numbers_after=qc.LEASE_NUMBERS_AFTER_MAX)
    assert queue_level(qc.encode_commands(commands)) == LEASE_NUMBERS_LEVEL
    assert qc.validate_commands(commands) is None
    assert "lease_numbers_after is between" in (qc.validate_commands(qc.Commands((), lease_numbers_after=-1)) or "")


@pytest.mark.parametrize("payload", [b"", b"junk", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff"], ids=range(4))
def test_unreadable_commands_stop_the_replica_unchanged(payload: bytes) -> None:
    log, machine = QueueLog(), QueuePartition()
    machine.apply(log.put(messages(2)))
    before = machine.applied_index
    assert machine.level_needed(payload) is None
    with pytest.raises(UnsupportedCommandError):
        machine.apply(log.append(EntryKind.COMMAND, payload))
    assert machine.applied_index == before
    assert machine.tenant("").ready == 2


def test_an_item_with_an_unknown_field_is_of_a_newer_version() -> None:
    assert qc.decode_commands(msgspec.msgpack.encode({"items": [{"t": "tick", "loud": True}]})) is None


def test_a_batch_of_a_newer_version_stops_the_replica() -> None:
    log, machine = QueueLog(), QueuePartition()
    for payload in (seal_queue_batch(encode(messages()), message_count=1), encode_chain(CHAIN, b"")):
        newer = bytearray(payload)
        newer[2] += 1
        with pytest.raises(UnsupportedCommandError, match="holds a batch"):
            machine.apply(log.append(EntryKind.DATA, bytes(newer), 1))
        log.entries.clear()


def test_the_bytes_of_a_chain() -> None:
    batch = seal_queue_batch(encode(messages()), message_count=1)
    payload = encode_chain(CHAIN, batch)
    command = msgspec.msgpack.encode(CHAIN)
    assert payload == bytes.fromhex("5243 01 00") + len(command).to_bytes(4, "little") + command + batch
    read = read_entry(payload)
    assert read is not None
    assert read.chain == CHAIN
    assert list(read.fields.body_lengths) == [4]


def test_no_committed_bytes_make_apply_fail() -> None:
    """Whatever a faulty leader appended: data takes its sequences, and commands change something or nothing."""
    rng = random.Random(5)
    told = history(random.Random(6), 80)
    log, host = QueueLog(), QueueHost()
    for entry in told.entries * 5:
        payload = bytearray(entry.payload)
        for _ in range(rng.randint(0, 3) if payload else 0):
            payload[rng.randrange(len(payload))] = rng.randrange(256)
        try:
            host.apply(log.append(entry.kind, bytes(payload), entry.record_count))
        except UnsupportedCommandError:
            log.entries.pop()
            log.next_offset -= entry.record_count
    assert host.machine.applied_index == log.next_index - 1
    recount(State(host.rows()))


@pytest.mark.parametrize(
    "item",
    [
        qc.Lease(0, 1, 2**63, 2**63, ("a..",) * 99),
        qc.Lease(0, 1, -5, -5),
        qc.Settle(0, 1, (1, 9, 2), (1, -3, 2**63), (2**63, -1, 5), (1, 1, 1), (7, -7, 1)),
        qc.Settle(0, 1, (2,), (0,), (1,), (1,), (1,), (qc.SettleDetail(delay_ms=2**63, priority=2**60),)),
        qc.Settle(0, 1, (4,), (0,), (1,), (1,), (1,), (qc.SettleDetail(lease_ms=2**63),)),
        qc.Change((qc.ChangeItem(1, 0, due=2**63, priority=-(2**60)), qc.ChangeItem(99, 1), qc.ChangeItem(2, -1))),
        qc.StartJob(77),
        qc.ContinueJob(1, -1),
        qc.PutSchedule("s" * 600, b"", 1),
        qc.Configure(QueueSettings(fairness="loud", message_ttl_ms=2**63)),
        qc.PauseTenant("a..b", 2**63),
        qc.AimCopies(-1, 2**63, 1),
        qc.CopyDead(2**63),
    ],
    ids=repr,
)
def test_an_item_that_should_not_have_been_proposed_breaks_no_row(item: qc.Item) -> None:
    """Validate before proposing, and never fail in apply: a poison entry would stop every replica (queue, defect Q1)."""
    log, machine = QueueLog(), QueuePartition()
    machine.apply(log.put(messages(3)))
    machine.apply(log.commands(qc.Lease(0, 1, 1, 60_000)))
    machine.apply(log.commands(item))
    assert machine.take_dirty_rows()
    assert machine.tenant("").total == 3


@pytest.mark.parametrize(("attempts", "expected"), [(1, 100), (2, 200), (3, 400), (10, 1000), (10**6, 1000)], ids=str)
def test_a_backoff_grows_by_its_factor_to_its_maximum(attempts: int, expected: int) -> None:
    settings = QueueSettings(backoff_base_ms=100, backoff_max_ms=1000)
    assert backoff_ms(settings, attempts, 5, 1) == expected


def test_a_jitter_is_drawn_for_each_message_from_the_seed_of_the_entry() -> None:
    settings = QueueSettings(backoff_base_ms=1000, backoff_jitter_percent=20)
    delays = [backoff_ms(settings, 1, sequence, 4711) for sequence in range(500)]
    assert delays == [backoff_ms(settings, 1, sequence, 4711) for sequence in range(500)]
    assert 800 <= min(delays) < 820
    assert 980 < max(delays) <= 1000
    assert len(set(delays)) > 100


def test_settings_have_bounds() -> None:
    assert validate_settings(QueueSettings()) is None
    assert "at least 100" in (validate_settings(QueueSettings(backoff_factor_percent=50)) or "")
    assert "weight" in (validate_settings(QueueSettings(tenant_weights=(("a", 0),))) or "")
