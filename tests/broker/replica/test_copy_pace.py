"""The budget of planned moves grows with time, is overdrawn by at most one message, and is given in turns."""

from __future__ import annotations

from raftmq.broker.replica.copy_pace import CopyPace

from sim.cluster.world.loop import VirtualLoop

RATE = 1000


def pace_of() -> tuple[VirtualLoop, CopyPace]:
    loop = VirtualLoop(lambda: 0.0)  # type: ignore[abstract]  # the rest of a loop is not used
    return loop, CopyPace(loop, 0.1)


def let_pass(loop: VirtualLoop, seconds: float) -> None:
    loop.run_until(lambda: False, loop.now + seconds)


def test_without_a_rate_nobody_waits() -> None:
    _, pace = pace_of()
    pace.spend(1 << 40)
    assert pace.may_send()
    assert pace.sent_bytes == 1 << 40


def test_a_debt_is_paid_before_more_is_sent() -> None:
    loop, pace = pace_of()
    pace.set_rate(RATE)
    let_pass(loop, 60.0)
    assert pace.may_send()
    pace.spend(2100)  # the burst of 100 bytes, and 2 s more
    let_pass(loop, 1.9)
    assert not pace.may_send()
    let_pass(loop, 0.2)
    assert pace.may_send()


def test_senders_take_turns_in_the_order_of_their_arrival() -> None:
    loop, pace = pace_of()
    pace.set_rate(RATE)
    turns: list[str] = []

    def take(name: str) -> None:
        turns.append(name)
        pace.spend(RATE)
        if len(turns) < 5:
            pace.wait(name, lambda: take(name))

    for name in "ab":
        pace.wait(name, lambda name=name: take(name))  # type: ignore[misc]
    pace.wait("a", lambda: take("not twice"))
    let_pass(loop, 60.0)
    assert turns == ["a", "b", "a", "b", "a", "b"]


def test_an_unlimited_rate_and_the_end_resume_everybody() -> None:
    loop, pace = pace_of()
    pace.set_rate(RATE)
    pace.spend(1 << 30)
    resumed: list[int] = []
    pace.wait(1, lambda: resumed.append(1))
    pace.wait(2, lambda: resumed.append(2))
    pace.set_rate(0)
    let_pass(loop, 0.01)
    assert resumed == [1, 2]
    pace.set_rate(RATE)
    pace.spend(1 << 30)
    pace.wait(3, lambda: resumed.append(3))
    pace.close()
    assert resumed == [1, 2, 3]
    assert pace.may_send()
