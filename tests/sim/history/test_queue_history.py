"""Each anomaly of queues is found in a history written by hand, and in none without it."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from sim.history.queues.checker import judge_queues
from sim.history.queues.operations import (
    Alteration,
    Answer,
    ChangedMessage,
    Drained,
    LeasedMessage,
    LeaseTaken,
    Operation,
    Outcome,
    Put,
    Scheduled,
    SentMessage,
    SettledMessage,
    Settlement,
    Sweep,
    Swept,
    Verb,
)

P = 7
"""The partition."""


def put(at: float, *messages: SentMessage, first: int = 0, **fields: object) -> Put:
    base = Put("p", P, at, at + 0.5, Outcome.OK, 0, messages, first, int(at * 1000))
    return replace(base, **fields)


def sent(value: str, **fields: object) -> SentMessage:
    return SentMessage(value.encode(), **fields)


def lease(
    at: float, value: str, sequence: int = 0, number: int = 1, *, lease_ms: int = 1_000, **fields: object
) -> LeaseTaken:
    """Return a lease that began at this time, which is the queue time as well."""
    message = LeasedMessage(sequence, number, value.encode())
    base = LeaseTaken("w", P, at, at + 0.1, Outcome.OK, int(at * 1000), (message,), lease_ms, int(at * 1000) + lease_ms)
    return replace(base, **fields)


def settle(at: float, verb: Verb, sequence: int = 0, number: int = 1, **fields: object) -> Settlement:
    fields = {"answer": Answer.DONE, **fields}
    one = SettledMessage(verb, sequence, number, **fields)
    return Settlement("w", P, at, at + 0.1, Outcome.OK, int(at * 1000), (one,))


def change(at: float, verb: Verb, sequence: int = 0, **fields: object) -> Alteration:
    one = ChangedMessage(verb, sequence, **{"answer": Answer.DONE, **fields})
    return Alteration("o", P, at, at + 0.1, Outcome.OK, int(at * 1000), (one,))


def sweep(at: float, kind: Sweep, tenant: str = "") -> Swept:
    return Swept("o", P, at, at + 0.1, Outcome.OK, 0, kind, tenant)


def drained(*left: tuple[str, int]) -> Drained:
    return Drained("v", P, 90.0, 99.0, Outcome.OK, 0, left)


def anomalies(*operations: Operation, backoff_ms: int = 0) -> list[str]:
    return [found.anomaly for found in judge_queues(operations, {P}, {P: backoff_ms})]


A = sent("a")
ACCEPTED = (put(1, A), lease(2, "a"), settle(2.5, Verb.ACCEPT), drained())


def test_a_message_that_is_put_leased_and_accepted_breaks_nothing() -> None:
    assert anomalies(*ACCEPTED) == []


def test_every_way_of_a_message_to_its_end_breaks_nothing() -> None:
    released = settle(2.5, Verb.RELEASE, delay_ms=400)
    assert (
        anomalies(
            put(1, A), lease(2, "a"), released, lease(3, "a", number=2), settle(3.5, Verb.ACCEPT, number=2), drained()
        )
        == []
    )
    expired = lease(4, "a", number=2)
    assert anomalies(put(1, A), lease(2, "a"), expired, settle(4.5, Verb.ACCEPT, number=2), drained()) == []
    assert anomalies(put(1, A), change(2, Verb.CANCEL), drained()) == []
    assert anomalies(put(1, A), sweep(2, Sweep.PURGE), drained()) == []
    dead = (put(1, A), lease(2, "a"), settle(2.5, Verb.REJECT), change(3, Verb.REDRIVE))
    assert anomalies(*dead, lease(4, "a", number=2), settle(4.5, Verb.ACCEPT, number=2), drained()) == []
    assert anomalies(put(1, sent("a", may_expire=True)), drained()) == []


@pytest.mark.parametrize(
    "excuse",
    [
        put(0, sent("b", id="i", replaces=True), first=5, outcome=Outcome.UNKNOWN),
        replace(settle(3, Verb.ACCEPT, answer=None), outcome=Outcome.UNKNOWN, ended=inf),
        sweep(3, Sweep.PURGE, "t"),
    ],
)
def test_a_message_that_may_have_been_finished_is_not_lost(excuse: Operation) -> None:
    history = (put(1, sent("a", id="i", tenant="t.x")), drained())

    assert anomalies(*history) == ["lost"]
    assert anomalies(excuse, *history) == []


@pytest.mark.parametrize(
    "no_excuse",
    [
        settle(3, Verb.ACCEPT, answer=Answer.LOST),
        replace(settle(3, Verb.ACCEPT, answer=None), outcome=Outcome.FAILED),
        settle(3, Verb.RELEASE),
        sweep(3, Sweep.PURGE, "other"),
        sweep(0, Sweep.PURGE_ALL),
        change(3, Verb.CANCEL, answer=Answer.OTHER),
    ],
)
def test_a_message_that_nothing_finished_is_lost(no_excuse: Operation) -> None:
    assert "lost" in anomalies(put(1, sent("a", tenant="t")), no_excuse, drained())


def test_a_partition_that_was_not_emptied_says_nothing_about_losses() -> None:
    assert anomalies(put(1, A)) == []
    assert anomalies(put(1, A), drained(("ready", 1))) == ["stuck"]


def test_a_message_that_nobody_sent_is_invented() -> None:
    assert anomalies(lease(2, "a")) == ["invented"]


def test_a_message_that_was_refused_or_repeated_is_invented() -> None:
    refused = put(1, A, first=-1, outcome=Outcome.FAILED)
    assert anomalies(refused, lease(2, "a")) == ["invented"]
    assert "invented" in anomalies(put(1, A, repeated=(0,)), lease(2, "a"))


def test_a_message_at_another_sequence_than_acknowledged_is_invented() -> None:
    assert "invented" in anomalies(put(1, A, first=3), lease(2, "a", sequence=4))
    assert "invented" in anomalies(put(1, A, partition=8), lease(2, "a"))


def test_a_message_with_two_sequences_is_duplicated() -> None:
    unknown = put(1, A, first=-1, outcome=Outcome.UNKNOWN, ended=inf)
    assert anomalies(unknown, lease(2, "a"), lease(2, "a", sequence=1)) == ["duplicated"]


def test_a_lease_before_the_due_time_is_early() -> None:
    for message in (sent("a", delay_ms=2_000), sent("a", due_ms=3_000)):
        assert anomalies(put(1, message), lease(2.9, "a")) == ["early"]
        assert anomalies(put(1, message), lease(3, "a")) == []


def test_a_lease_after_a_release_waits_for_its_delay() -> None:
    history = (put(1, A), lease(2, "a"), settle(2.5, Verb.RELEASE, delay_ms=1_000))
    assert anomalies(*history, lease(3.4, "a", number=2)) == ["early"]
    assert anomalies(*history, lease(3.5, "a", number=2)) == []


def test_a_moved_message_is_due_at_its_new_time() -> None:
    history = (put(1, sent("a", delay_ms=9_000)), change(2, Verb.MOVE, due_ms=4_000))
    assert anomalies(*history, lease(3, "a")) == ["early"]
    assert anomalies(*history, lease(4, "a")) == []


def test_a_message_whose_attempt_failed_waits_for_the_delay_of_its_topic() -> None:
    released = (put(1, A), lease(2, "a"), settle(2.5, Verb.RELEASE, is_backed_off=True))
    assert anomalies(*released, lease(2.8, "a", number=2), backoff_ms=400) == ["early"]
    assert anomalies(*released, lease(2.9, "a", number=2), backoff_ms=400) == []
    expired = (put(1, A), lease(2, "a"))
    assert anomalies(*expired, lease(3.3, "a", number=2), backoff_ms=400) == ["early"]
    assert anomalies(*expired, lease(3.4, "a", number=2), backoff_ms=400) == []
    assert anomalies(*expired, lease(3.3, "a", number=2)) == []


@pytest.mark.parametrize(
    "excuse",
    [
        settle(2.5, Verb.RELEASE),
        settle(2.5, Verb.RELEASE, answer=None),
        settle(2.5, Verb.RELEASE, is_backed_off=True, answer=None),
        settle(2.2, Verb.RENEW, lease_ms=300),
        change(2.8, Verb.MOVE, due_ms=2_900),
        change(2.8, Verb.REDRIVE),
    ],
)
def test_a_delay_that_the_topic_need_not_have_given_is_not_missed(excuse: Operation) -> None:
    assert "early" not in anomalies(put(1, A), lease(2, "a"), excuse, lease(3, "a", number=2), backoff_ms=900)


def test_a_lease_within_another_lease_is_the_second_one() -> None:
    assert anomalies(put(1, A), lease(2, "a"), lease(2.9, "a", number=2)) == ["leased_twice"]
    assert anomalies(put(1, A), lease(2, "a"), lease(3, "a", number=2)) == []
    assert anomalies(put(1, A), lease(2, "a"), lease(9, "a")) == ["leased_twice"]
    assert anomalies(put(1, A), lease(9, "a"), lease(5, "a", number=2)) == ["leased_twice"]


def test_a_renewed_lease_lasts_longer() -> None:
    history = (put(1, A), lease(2, "a"), settle(2.9, Verb.RENEW, lease_ms=1_000))
    assert anomalies(*history, lease(3.5, "a", number=2)) == ["leased_twice"]
    assert anomalies(*history, lease(3.9, "a", number=2)) == []


def test_a_lease_that_may_have_been_released_ends() -> None:
    history = (put(1, A), lease(2, "a"), lease(2.5, "a", number=2))
    released = replace(settle(2.2, Verb.RELEASE, answer=None), outcome=Outcome.UNKNOWN, ended=inf)
    assert anomalies(*history) == ["leased_twice"]
    assert anomalies(*history, released) == []


def test_a_token_is_good_for_one_end() -> None:
    history = (put(1, A), lease(2, "a"), settle(2.1, Verb.RELEASE))
    assert anomalies(*history, settle(2.5, Verb.RELEASE)) == ["settled_twice"]
    assert anomalies(*history, settle(2.5, Verb.RENEW)) == ["settled_twice"]
    assert anomalies(*history, settle(2.5, Verb.RELEASE, answer=Answer.LOST)) == []


def test_an_old_token_settles_nothing() -> None:
    history = (put(1, A), lease(2, "a"), lease(3, "a", number=2))
    assert "settled_twice" in anomalies(*history, settle(3.5, Verb.RENEW))
    assert anomalies(*history, settle(3.5, Verb.RENEW, number=2)) == []


@pytest.mark.parametrize("verb", [Verb.ACCEPT, Verb.REJECT])
def test_a_finished_message_that_is_leased_again_is_resurrected(verb: Verb) -> None:
    assert anomalies(put(1, A), lease(2, "a"), settle(2.5, verb), lease(5, "a", number=2)) == ["resurrected"]


def test_a_redrive_excuses_only_leases_after_it_of_messages_that_may_have_died() -> None:
    delayed = put(1, sent("a", delay_ms=9_000))
    assert anomalies(delayed, sweep(2, Sweep.REDRIVE), lease(3, "a")) == ["early"]
    rejected = (put(1, A), lease(2, "a"), settle(2.5, Verb.REJECT))
    assert anomalies(*rejected, lease(5, "a", number=2), sweep(6, Sweep.REDRIVE)) == ["resurrected"]
    assert anomalies(*rejected, lease(5, "a", number=2), sweep(4, Sweep.REDRIVE)) == []


def test_a_message_that_died_a_cancelled_one_and_a_purged_one_stay_away() -> None:
    died = settle(2.5, Verb.RELEASE, answer=Answer.DIED)
    assert anomalies(put(1, A), lease(2, "a"), died, lease(5, "a", number=2)) == ["resurrected"]
    assert anomalies(put(1, A), change(2, Verb.CANCEL), lease(3, "a")) == ["resurrected"]
    assert anomalies(put(1, A), sweep(2, Sweep.PURGE_ALL), lease(3, "a")) == ["resurrected"]
    assert anomalies(put(1, A), sweep(2, Sweep.PURGE), lease(3, "a")) == []


def test_a_replaced_message_stays_away() -> None:
    history = (put(1, sent("a", id="i")), put(2, sent("b", id="i", replaces=True), first=1, replaced=(0,)))
    assert anomalies(*history, lease(3, "a")) == ["resurrected"]
    assert anomalies(*history, lease(3, "b", sequence=1)) == []


def test_the_messages_of_a_key_are_leased_one_after_the_other() -> None:
    history = (put(1, sent("a", key="k"), sent("b", key="k")),)
    second = lease(3, "b", sequence=1)
    assert anomalies(*history, second) == ["misordered"]
    assert anomalies(*history, lease(2, "a"), second) == ["misordered"]
    assert anomalies(*history, lease(2, "a"), settle(2.5, Verb.RELEASE), second) == ["misordered"]
    assert anomalies(*history, lease(2, "a"), settle(2.5, Verb.ACCEPT), second) == []
    assert anomalies(*history, lease(2, "a"), settle(2.5, Verb.REJECT), second) == []


def test_messages_of_other_keys_and_delayed_ones_block_nobody() -> None:
    second = lease(3, "b", sequence=1)
    for first in (sent("a", key="l"), sent("a", key="k", tenant="t"), sent("a", key="k", delay_ms=9_000), sent("a")):
        assert anomalies(put(1, first, sent("b", key="k")), second) == []


def test_a_partition_without_order_has_no_order_of_keys() -> None:
    history = (put(1, sent("a", key="k"), sent("b", key="k")), lease(3, "b", sequence=1))
    assert judge_queues(history) == []


def test_a_lease_after_the_time_to_live_is_found() -> None:
    mortal = put(1, sent("a", may_expire=True, expires_ms=500), append_ms=1_000)
    assert anomalies(mortal, lease(1.4, "a")) == []
    assert anomalies(mortal, lease(1.6, "a")) == ["expired"]
    redriven = change(1.55, Verb.REDRIVE)
    assert anomalies(mortal, redriven, lease(1.6, "a")) == [], "it has died, and a redriven message lives on"


def test_a_lease_that_is_settled_after_a_change_began_after_it() -> None:
    """The consumer asked for messages long before, so only the settlement tells the order: nobody changes a leased message."""
    asked_before = lease(1.6, "a", began=1.0)
    both = put(1, sent("a")), settle(2.0, Verb.ACCEPT)
    assert anomalies(*both, change(1.5, Verb.CANCEL), asked_before) == ["resurrected"]
    assert anomalies(*both, change(1.5, Verb.MOVE, delay_ms=400), asked_before) == ["early"]
    assert anomalies(both[0], change(1.5, Verb.CANCEL), asked_before) == [], "the lease may have ended before"


def by_id(at: float, verb: Verb, **fields: object) -> Alteration:
    return change(at, verb, -1, id="i", **fields)


def test_a_change_by_id_may_be_about_each_message_that_had_the_id() -> None:
    named, other = sent("a", id="i"), sent("a", id="j")
    assert anomalies(put(1, named), by_id(2, Verb.CANCEL), drained()) == []
    assert anomalies(put(1, other), by_id(2, Verb.CANCEL), drained()) == ["lost"]
    assert anomalies(put(1, named), by_id(2, Verb.CANCEL, answer=Answer.OTHER), drained()) == ["lost"]
    assert anomalies(put(1, named), by_id(2, Verb.CANCEL), lease(3, "a")) == []

    unknown = put(1, replace(named, delay_ms=9_000), first=-1, outcome=Outcome.UNKNOWN, ended=inf, before_ms=1_000)
    assert anomalies(replace(unknown, append_ms=0), lease(3, "a")) == ["early"]
    assert anomalies(replace(unknown, append_ms=0), by_id(2, Verb.MOVE, delay_ms=500), lease(3, "a")) == []


def test_a_change_that_was_repeated_may_have_been_done_by_an_earlier_attempt() -> None:
    first = replace(change(2, Verb.CANCEL, answer=None), outcome=Outcome.UNKNOWN, ended=inf)
    refused = change(3, Verb.CANCEL, answer=Answer.OTHER)
    assert anomalies(put(1, A), first, refused, drained()) == []
    assert anomalies(put(1, A), refused, drained()) == ["lost"]


def scheduled(at: float, value: str, outcome: Outcome = Outcome.OK) -> Scheduled:
    return Scheduled("o", P, at, inf, outcome, 0, value.encode())


def test_each_firing_of_a_schedule_is_a_message() -> None:
    fired = (lease(2, "a"), lease(2, "a", sequence=1))
    assert anomalies(scheduled(1, "a"), *fired) == []
    assert anomalies(scheduled(1, "a", Outcome.FAILED), *fired) == ["invented", "invented"]
    assert anomalies(replace(scheduled(1, "a"), partition=8), *fired) == ["invented", "invented"]
    assert anomalies(scheduled(1, "a", Outcome.FAILED), scheduled(1, "a", Outcome.UNKNOWN), *fired) == []
    again = (lease(2, "a"), settle(2.5, Verb.ACCEPT), lease(5, "a", number=2))
    assert anomalies(scheduled(1, "a"), *again) == ["resurrected"]


def test_a_single_active_consumer_has_all_leases_until_they_end() -> None:
    def shared(*operations: Operation) -> list[str]:
        history = (put(1, A, sent("b")), lease(2, "a"), *operations)
        return [found.anomaly for found in judge_queues(history, single_partitions={P})]

    second = lease(2.5, "b", sequence=1)
    assert anomalies(put(1, A, sent("b")), lease(2, "a"), second) == []
    assert shared(second) == ["shared"]
    assert shared(lease(3, "b", sequence=1)) == []
    assert shared(settle(2.2, Verb.ACCEPT), second) == []
    assert shared(settle(2.2, Verb.RENEW, lease_ms=3_000), lease(3.5, "b", sequence=1)) == ["shared"]
    later = (put(2.3, sent("c"), first=2), lease(2.5, "c", sequence=2))
    assert shared(*later) == ["shared"]
    assert shared(sweep(2.2, Sweep.PURGE_ALL), *later) == []
    both = replace(lease(2, "a"), messages=(LeasedMessage(0, 1, b"a"), LeasedMessage(1, 1, b"b")))
    assert [found.anomaly for found in judge_queues((put(1, A, sent("b")), both), single_partitions={P})] == []


def test_a_change_that_overwrites_one_it_has_not_seen_is_a_lost_update() -> None:
    message = (put(1, A), drained())

    def moved(at: float, expected: int = -1, version: int = 0, **fields: object) -> Alteration:
        return change(at, Verb.MOVE, due_ms=1, expected_version=expected, version=version, **fields)

    def found(*moves: Alteration) -> list[str]:
        return [one for one in anomalies(*message, *moves) if one == "lost_update"]

    assert found(moved(2, 0, 1), moved(3, 1, 2), moved(4, -1, 3), moved(5, 3, 4)) == []
    assert found(moved(2, 0), moved(2.05, 0)) == ["lost_update"], "both were done in the same version"
    assert found(moved(2, 0), moved(2.05, 0, answer=Answer.OTHER)) == []
    assert found(moved(2, 0), moved(2.05, 0, answer=None)) == [], "it may have been refused"
    assert found(moved(2, version=1), moved(3, 0)) == ["lost_update"], "the first one was answered before"
    assert found(moved(2, version=1), moved(2.05, 0)) == [], "the first one may have come second"
    assert found(moved(2, 0, 2)) == ["lost_update"], "another change came between"
    assert found(change(2, Verb.CANCEL, expected_version=0, version=3)) == ["lost_update"]
