"""The meaning of membership changes, compared with a slow obvious twin, and their encoding."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.raft.membership import (
    EMPTY_MEMBERSHIP,
    Membership,
    MembershipChange,
    MembershipError,
    MembershipOp,
    apply_change,
    decode_change,
    encode_change,
    enter_joint,
    find_defect,
    leave_joint,
)
from raftmq.types import ReplicaId

from tests.support.raft.harness import change, membership, voters

ADD, LEARN, REMOVE = MembershipOp.ADD_VOTER, MembershipOp.ADD_LEARNER, MembershipOp.REMOVE
STEPS = st.lists(st.tuples(st.sampled_from(MembershipOp), st.integers(1, 6).map(ReplicaId)), min_size=1, max_size=5)
CHANGES = st.builds(MembershipChange, STEPS.map(tuple), st.integers(0, 2**64 - 1), st.booleans())


@st.composite
def configurations(draw: st.DrawFn) -> Membership:
    roles = draw(st.dictionaries(st.integers(1, 6).map(ReplicaId), st.booleans(), min_size=1, max_size=6))
    voter_ids = sorted(i for i, is_voter in roles.items() if is_voter)
    if not voter_ids:
        voter_ids = [ReplicaId(7)]
    return Membership(tuple(voter_ids), tuple(sorted(i for i, is_voter in roles.items() if not is_voter)))


@dataclass
class SlowTwin:
    """A twin in which every replica has a role in the old and in the new half, and steps are plain assignments."""

    old: dict[int, str] = field(default_factory=dict)
    new: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Membership) -> "SlowTwin":
        roles: dict[int, str] = {**dict.fromkeys(config.voters, "voter"), **dict.fromkeys(config.learners, "learner")}
        return cls(dict(roles), dict(roles))

    def run(self, steps: tuple[tuple[MembershipOp, ReplicaId], ...]) -> None:
        for op, replica_id in steps:
            if op is REMOVE:
                self.new.pop(replica_id, None)
            else:
                self.new[replica_id] = "voter" if op is ADD else "learner"

    def ids(self, half: dict[int, str], role: str) -> set[int]:
        return {i for i, r in half.items() if r == role}


@given(configurations(), STEPS.map(tuple))
def test_a_joint_change_then_leave_equals_the_slow_twin(
    config: Membership, steps: tuple[tuple[MembershipOp, ReplicaId], ...]
) -> None:
    twin = SlowTwin.of(config)
    twin.run(steps)
    if not twin.ids(twin.new, "voter"):
        with pytest.raises(MembershipError):
            enter_joint(config, MembershipChange(steps))
        return
    joint = enter_joint(config, MembershipChange(steps))
    assert find_defect(joint) is None
    assert set(joint.voters) == twin.ids(twin.new, "voter")
    assert set(joint.outgoing) == twin.ids(twin.old, "voter")
    # an old voter becomes a learner only when the joint configuration is left
    assert set(joint.learners_next) == twin.ids(twin.new, "learner") & twin.ids(twin.old, "voter")
    assert set(joint.learners) == twin.ids(twin.new, "learner") - twin.ids(twin.old, "voter")
    left = leave_joint(joint)
    assert find_defect(left) is None
    assert set(left.voters) == twin.ids(twin.new, "voter")
    assert set(left.learners) == twin.ids(twin.new, "learner")


@given(configurations(), STEPS.map(tuple))
def test_one_simple_step_equals_joint_and_leave(
    config: Membership, steps: tuple[tuple[MembershipOp, ReplicaId], ...]
) -> None:
    """From etcd's quick test: if a simple change is possible, both ways have the same result."""
    try:
        after = apply_change(config, MembershipChange(steps))
    except MembershipError:
        return
    if not after.is_joint:
        assert leave_joint(enter_joint(config, MembershipChange(steps))) == after


@given(configurations(), st.lists(CHANGES | st.just(MembershipChange(())), max_size=12))
def test_random_sequences_keep_every_invariant_and_never_jump(
    config: Membership, sequence: list[MembershipChange]
) -> None:
    """Between consecutive configurations, every majority of one overlaps with every majority of the other (4.3)."""
    for step in sequence:
        try:
            after = apply_change(config, step)
        except MembershipError:
            continue
        assert find_defect(after) is None
        if not after.is_joint and not config.is_joint:
            assert len(set(after.voters) ^ set(config.voters)) <= 1
        elif after.is_joint:
            assert after.outgoing == config.voters
            assert after.auto_leave is not step.is_explicit
        else:
            assert after.voters == config.voters
        assert after.revision >= config.revision
        config = after


def test_one_voter_takes_the_fast_path_and_two_go_joint() -> None:
    assert not apply_change(membership(1, 2, 3), change((ADD, 4))).is_joint
    assert not apply_change(membership(1, 2, 3), change((LEARN, 3), (LEARN, 9))).is_joint
    joint = apply_change(membership(1, 2, 3), change((ADD, 4), (REMOVE, 1)))
    assert (joint.voters, joint.outgoing, joint.auto_leave) == (voters(2, 3, 4), voters(1, 2, 3), True)


def test_an_explicit_change_stays_joint_until_told() -> None:
    joint = apply_change(membership(1, 2, 3), change((ADD, 4), is_explicit=True))
    assert joint.is_joint
    assert not joint.auto_leave
    assert apply_change(joint, change()) == membership(1, 2, 3, 4)


def test_a_demoted_voter_becomes_a_learner_only_on_leaving() -> None:
    joint = apply_change(membership(1, 2, 3), change((LEARN, 3), (ADD, 4)))
    assert (joint.learners, joint.learners_next) == ((), voters(3))
    assert leave_joint(joint) == membership(1, 2, 4, learners=[3])


@pytest.mark.parametrize(
    ("config", "attempted"),
    [
        (membership(1), change((REMOVE, 1))),
        (membership(1, 2), change((LEARN, 1), (LEARN, 2))),
        (membership(1, 2, 3), change()),
        (EMPTY_MEMBERSHIP, change((ADD, 1), (ADD, 2))),
        (membership(1), change((ADD, 0))),
        (apply_change(membership(1, 2), change((ADD, 3), (ADD, 4))), change((ADD, 5))),
    ],
)
def test_an_impossible_change_is_refused(config: Membership, attempted: MembershipChange) -> None:
    with pytest.raises(MembershipError):
        apply_change(config, attempted)


@given(CHANGES)
def test_a_change_survives_encoding_and_decoding(original: MembershipChange) -> None:
    assert decode_change(encode_change(original)) == original


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_refused_and_never_crash(payload: bytes) -> None:
    try:
        decoded = decode_change(payload)
    except MembershipError:
        return
    assert decode_change(encode_change(decoded)) == decoded


def test_a_truncated_or_unknown_change_is_refused() -> None:
    good = encode_change(change((ADD, 4)))
    for bad in (good[:-1], good + b"x", b"\x09" + good[1:], good[:12] + b"\x07" + good[13:], b""):
        with pytest.raises(MembershipError):
            decode_change(bad)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (Membership(voters(2, 1)), "sorted"),
        (Membership(voters(1, 1)), "sorted"),
        (Membership(voters(0)), "positive"),
        (Membership(voters(1), learners=voters(1)), "learner too"),
        (Membership(voters(1), outgoing=voters(2), learners=voters(2)), "learner too"),
        (Membership(voters(1), outgoing=voters(2), learners_next=voters(3)), "outgoing"),
        (Membership(voters(1), outgoing=voters(1), learners_next=voters(1)), "incoming"),
        (Membership(voters(1), auto_leave=True), "not joint"),
        (Membership((), outgoing=voters(1)), "without incoming"),
    ],
)
def test_every_defect_is_found(config: Membership, word: str) -> None:
    defect = find_defect(config)
    assert defect is not None
    assert word in defect


def test_ids_of_both_halves_are_members() -> None:
    joint = apply_change(membership(1, 2, 3, learners=[8]), change((ADD, 4), (REMOVE, 1)))
    assert joint.voter_ids == voters(1, 2, 3, 4)
    assert joint.member_ids == voters(1, 2, 3, 4, 8)
    assert membership(1, 2).voter_ids == voters(1, 2)
