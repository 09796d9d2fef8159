"""Groups to assign, twins that try every assignment, and checks that all assignments must pass."""

from collections.abc import Iterable, Iterator
from itertools import product

from hypothesis import strategies as st
from raftmq.assignors.assignor import AssignedPartition, Assignment, ConsumerGroup, Member, Topic


def equal_group(member_count: int, *partition_counts: int, owned: Assignment | None = None) -> ConsumerGroup:
    """Return members m00, m01, … that all subscribe to topics 1, 2, … with these numbers of partitions."""
    topic_ids = frozenset(range(1, len(partition_counts) + 1))
    return ConsumerGroup(
        tuple(Member(f"m{number:02d}", topic_ids) for number in range(member_count)),
        tuple(Topic(number, count) for number, count in enumerate(partition_counts, 1)),
        owned or {},
    )


@st.composite
def groups(
    draw: st.DrawFn,
    *,
    members_max: int = 8,
    topics_max: int = 4,
    partitions_max: int = 9,
    is_equal: bool = False,
    with_racks: bool = False,
) -> ConsumerGroup:
    """Draw any group with a previous assignment, which may name former members and deleted partitions, even twice."""
    racks = st.sampled_from(["", "a", "b", "c"]) if with_racks else st.just("")
    topic_count = draw(st.integers(0, topics_max))
    topic_ids = range(1, topic_count + 1)
    all_topics = frozenset(topic_ids)
    subscriptions = st.just(all_topics) if is_equal else st.frozensets(st.integers(1, topics_max + 1))
    members = tuple(
        Member(f"m{number}", draw(subscriptions), draw(racks))
        for number in draw(st.permutations(range(draw(st.integers(0, members_max)))))
    )
    topics = []
    for topic_id in draw(st.permutations(topic_ids)):
        count = draw(st.integers(0, partitions_max))
        rack_rows = draw(st.lists(st.frozensets(st.sampled_from("abc")), max_size=count)) if with_racks else []
        topics.append(Topic(topic_id, count, tuple(rack_rows)))
    partitions = st.tuples(st.integers(1, topics_max + 1), st.integers(0, partitions_max))
    owners = st.sampled_from([f"m{number}" for number in range(members_max + 2)])
    claims = draw(st.lists(st.tuples(owners, partitions), max_size=topics_max * partitions_max))
    owned: dict[str, list[AssignedPartition]] = {}
    for owner, partition in claims:
        owned.setdefault(owner, []).append(partition)
    return ConsumerGroup(members, tuple(topics), owned)


def wanted_partitions(group: ConsumerGroup) -> list[AssignedPartition]:
    """Return the partitions of topics to which any member subscribes."""
    subscribed = set().union(*(member.topic_ids for member in group.members))
    return sorted(
        (topic.topic_id, number)
        for topic in group.topics
        if topic.topic_id in subscribed
        for number in range(topic.partition_count)
    )


def owners_of(assignment: Assignment) -> dict[AssignedPartition, str]:
    return {partition: member_id for member_id, partitions in assignment.items() for partition in partitions}


def keepers_of(group: ConsumerGroup) -> dict[AssignedPartition, str]:
    """Return the current owners that could keep their partitions. Of two owners, the first by id counts."""
    wanted = set(wanted_partitions(group))
    topics_of = {member.member_id: member.topic_ids for member in group.members}
    keepers: dict[AssignedPartition, str] = {}
    for member_id in sorted(group.owned):
        for partition in group.owned[member_id]:
            if partition in wanted and partition[0] in topics_of.get(member_id, ()):
                keepers.setdefault(partition, member_id)
    return keepers


def check_complete(group: ConsumerGroup, assignment: Assignment) -> None:
    """Check that every partition has one owner that subscribes to it, and that every member has an entry, in order."""
    topics_of = {member.member_id: member.topic_ids for member in group.members}
    assert assignment.keys() == topics_of.keys()
    assert sorted(p for partitions in assignment.values() for p in partitions) == wanted_partitions(group)
    for member_id, partitions in assignment.items():
        assert list(partitions) == sorted(partitions)
        assert {topic_id for topic_id, _ in partitions} <= topics_of[member_id]


def cost(group: ConsumerGroup, owners: dict[AssignedPartition, str]) -> tuple[tuple[int, ...], int]:
    """Return the loads, the largest first, and the moves, which a sticky assignment minimizes in this order."""
    loads = [sum(owner == member.member_id for owner in owners.values()) for member in group.members]
    moves = sum(owners[partition] != keeper for partition, keeper in keepers_of(group).items())
    return tuple(sorted(loads, reverse=True)), moves


def every_assignment(group: ConsumerGroup) -> Iterator[dict[AssignedPartition, str]]:
    """Yield all assignments. Use it only for small groups."""
    partitions = wanted_partitions(group)
    choices: Iterable[list[str]] = [
        [member.member_id for member in group.members if topic_id in member.topic_ids] for topic_id, _ in partitions
    ]
    for owners in product(*choices):
        yield dict(zip(partitions, owners, strict=True))


def near_count(group: ConsumerGroup, assignment: Assignment) -> int:
    """Count the partitions that are consumed in a rack with a replica."""
    rack_of = {member.member_id: member.rack for member in group.members}
    racks = {(t.topic_id, number): row for t in group.topics for number, row in enumerate(t.racks)}
    return sum(rack_of[owner] in racks.get(partition, ()) for partition, owner in owners_of(assignment).items())
