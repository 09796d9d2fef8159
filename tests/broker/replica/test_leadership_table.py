"""In the leadership table the highest term wins, and a leader can withdraw only its own claim."""

from raftmq.broker.replica.leadership_table import LeadershipTable


def table():
    changed = []
    return LeadershipTable(changed.append, lambda node_id: f"node-{node_id}"), changed


def test_the_highest_term_wins_in_any_order():
    one, changed = table()
    assert one.claim(7, 5, 2)
    assert not one.claim(7, 4, 3)
    assert one.claim(7, 6, 1)
    assert one.get(7) == (6, 1)
    assert changed == [7, 7]


def test_a_repeated_claim_is_no_change():
    one, changed = table()
    one.claim(7, 5, 2)
    assert not one.claim(7, 5, 2)
    assert changed == [7]


def test_only_the_claimant_of_the_term_withdraws():
    one, _ = table()
    one.claim(7, 5, 2)
    assert not one.withdraw(7, 5, 3)
    assert not one.withdraw(7, 4, 2)
    assert one.withdraw(7, 5, 2)
    assert one.get(7) == (5, 0)


def test_an_unknown_leader_of_the_same_term_does_not_replace_a_known_one():
    """A follower that lost contact with the leader knows less than the leader itself."""
    one, _ = table()
    one.claim(7, 5, 2)
    assert not one.claim(7, 5, 0)
    assert one.get(7) == (5, 2)


def test_a_hint_names_the_leader_believed_in_and_its_address():
    one, _ = table()
    assert one.leader_hint(7) == (0, "", 0)
    one.claim(7, 5, 2)
    assert one.leader_hint(7) == (2, "node-2", 5)
    one.withdraw(7, 5, 2)
    assert one.leader_hint(7) == (0, "", 5)
