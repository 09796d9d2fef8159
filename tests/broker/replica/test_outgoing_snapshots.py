"""The log stays while a snapshot is sent or may be resumed."""

from raftmq.broker.replica.outgoing_snapshots import POSTPONED_SECONDS, OutgoingSnapshots
from raftmq.types import ReplicaId

ONE, OTHER = ReplicaId(1), ReplicaId(2)


def test_the_log_is_held_while_a_snapshot_is_sent() -> None:
    outgoing = OutgoingSnapshots()
    assert not outgoing.hold_log(0.0, 60.0)
    outgoing.begin()
    assert outgoing.hold_log(1e9, 60.0)
    outgoing.end()
    assert not outgoing.hold_log(0.0, 60.0)


def test_an_interrupted_snapshot_holds_the_log_for_a_while_and_only_once() -> None:
    """Otherwise a receiver that always fails would keep the log from ever being truncated."""
    outgoing = OutgoingSnapshots()
    outgoing.record_end(ONE, 100.0, is_resumable=True)
    outgoing.record_end(ONE, 150.0, is_resumable=True)
    assert outgoing.hold_log(159.0, 60.0)
    assert not outgoing.hold_log(160.0, 60.0)
    outgoing.record_end(ONE, 161.0, is_resumable=True)
    assert not outgoing.hold_log(161.0, 60.0)
    outgoing.record_end(ONE, 162.0, is_resumable=False)
    outgoing.record_end(ONE, 163.0, is_resumable=True)
    assert outgoing.hold_log(163.0, 60.0), "a whole one came between"


def test_each_receiver_holds_the_log_by_itself() -> None:
    outgoing = OutgoingSnapshots()
    outgoing.record_end(ONE, 100.0, is_resumable=True)
    outgoing.record_end(OTHER, 130.0, is_resumable=True)
    outgoing.record_end(ONE, 131.0, is_resumable=False)
    assert outgoing.hold_log(189.0, 60.0)
    assert not outgoing.hold_log(190.0, 60.0)


def test_a_snapshot_waits_for_the_pace_or_for_others_but_not_between_attempts() -> None:
    """A move whose copy waits for its turn is not given up. One whose receiver refuses its snapshot each time is."""
    outgoing = OutgoingSnapshots()
    outgoing.begin()
    assert not outgoing.is_waiting(0.0)
    with outgoing.paced():
        assert outgoing.is_waiting(0.0)
    assert not outgoing.is_waiting(0.0)
    outgoing.postpone(100.0)
    assert outgoing.is_waiting(100.0 + POSTPONED_SECONDS - 1)
    assert not outgoing.is_waiting(100.0 + POSTPONED_SECONDS)
