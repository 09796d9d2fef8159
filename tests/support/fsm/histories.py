"""Random histories for the state machines, and the ways in which a replica can go through them.

Everything is drawn from the generator passed by the caller: Hypothesis' own, so that histories shrink, or a seeded one.
Ids and names come from small pools, so that commands often meet the same objects. Run as a program this module prints
digests of the state after seeded histories, for a comparison across interpreters with different hash seeds.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterable, Sequence

from raftmq.batch_header import BatchFormatError, UnsupportedBatchVersionError, parse_header, seal
from raftmq.fsm import log_commands as lc
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.producer_ids import NAMED_PRODUCER_BIT
from raftmq.raft.entry import GENESIS, Entry, EntryKind
from raftmq.types import LogIndex, Offset, Term

Machine = Metadata | LogPartition
Rows = tuple[tuple[bytes, bytes], ...]

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000


class LogBuilder:
    """Builds a log with dense indexes, dense offsets and append times that never decrease."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.time_ms = START_MS
        self.next_offset = 0

    @property
    def next_index(self) -> int:
        return GENESIS.index + 1 + len(self.entries)

    def append(self, kind: EntryKind, payload: bytes, record_count: int = 0) -> Entry:
        entry = Entry(
            LogIndex(self.next_index),
            Term(6),
            kind,
            Offset(self.next_offset),
            record_count,
            self.time_ms,
            payload,
        )
        self.entries.append(entry)
        self.next_offset += record_count
        return entry

    def metadata(self, command: mc.MetadataCommand) -> Entry:
        return self.append(EntryKind.COMMAND, mc.encode_command(command))

    def log(self, command: lc.LogPartitionCommand) -> Entry:
        return self.append(EntryKind.COMMAND, lc.encode_command(command))

    def batch(self, producer_id: int, epoch: int, first_sequence: int, count: int = 1, body: bytes = b"body") -> Entry:
        return self.append(EntryKind.DATA, batch(producer_id, epoch, first_sequence, count, body), count)


def batch(producer_id: int, epoch: int, first_sequence: int, count: int = 1, body: bytes = b"body") -> bytes:
    return seal(
        body,
        record_count=count,
        raw_body_bytes=len(body),
        base_timestamp_ms=0,
        max_timestamp_ms=0,
        producer_id=producer_id,
        producer_epoch=epoch,
        first_sequence=first_sequence,
    )


def register(uuid: str, node_id: int = 0, **changes: object) -> mc.RegisterNode:
    fields: dict[str, object] = {
        "client_address": f"{uuid}:9400",
        "peer_address": f"{uuid}:9401",
        "http_address": f"{uuid}:9402",
        "host": f"host-{uuid}",
        "rack": "",
        "version": "1",
        "feature_level_max": 1,
    }
    return mc.RegisterNode(uuid=uuid, node_id=node_id, **(fields | changes))


def plans(rng: random.Random, count: int) -> tuple[mc.PartitionPlan, ...]:
    return tuple(mc.PartitionPlan(tuple(rng.sample(range(1, 6), rng.randint(1, 3)))) for _ in range(count))


def metadata_command(rng: random.Random, index: int) -> mc.MetadataCommand:
    guard = max(0, index - rng.randint(0, 20))
    name = rng.choice(["flights", "a", "b.c", "d-e", "bad name", ".."])
    makers: list[Callable[[], mc.MetadataCommand]] = [
        lambda: register(
            f"u{rng.randint(1, 7)}",
            rng.choice([0, 0, rng.randint(-1, 6)]),
            rack=rng.choice(["", "r1", "r2"]),
            replaces_lost=rng.random() < 0.3,
            feature_level_max=rng.randint(0, 3),
        ),
        lambda: register(f"u{rng.randint(1, 4)}", feature_level_max=3),
        lambda: mc.RaiseFeatureLevel(rng.randint(0, 4)),
        lambda: mc.RemoveNode(rng.randint(1, 6), is_forced=rng.random() < 0.5),
        lambda: mc.SetMetadataMembership(tuple(rng.sample(range(1, 9), rng.randint(0, 3))), guard),
        lambda: mc.CreateTopic(
            name,
            "log" if rng.random() < 0.9 else "queue",
            3,
            {"k" + str(rng.randint(1, 9)): "v", "a": "b"},
            plans(rng, rng.randint(0, 4)),
        ),
        lambda: mc.AddPartitions(rng.randint(1, 5), rng.randint(1, 4), plans(rng, rng.randint(0, 3))),
        lambda: mc.AlterTopicConfig(
            rng.randint(1, 5), {f"k{key}": rng.choice(["x", "y", None]) for key in rng.sample(range(1, 6), 3)}
        ),
        lambda: mc.DeleteTopic(rng.randint(1, 5)),
        lambda: mc.AllocateProducerIds(rng.randint(-1, 1000)),
        lambda: mc.InitNamedProducer(f"p{rng.randint(1, 4)}", rng.choice([None, None, rng.randint(-1, 5), 2**64 - 1])),
        lambda: mc.InitNamedProducer(
            f"p{rng.randint(1, 4)}", rng.randint(0, 5), rng.randbytes(rng.randint(0, 2)), rng.choice([None, b"", b"\0"])
        ),
        lambda: mc.InitNamedProducer(
            f"p{rng.randint(1, 4)}",
            rng.randint(0, 5),
            rng.randbytes(rng.randint(0, 1)),
            rng.choice([None, b""]),
            mc.StampClaim(f"p{rng.randint(0, 4)}", rng.randint(0, 5), rng.randbytes(1), rng.choice([None, b""])),
        ),
        lambda: mc.ForgetProducerNames(
            tuple(f"p{number}" for number in range(1, rng.randint(1, 5))), rng.choice([0, 2**60])
        ),
        lambda: mc.RemoveReplica(rng.randint(0, 8), rng.randint(1, 40)),
        lambda: mc.ReplaceReplica(rng.randint(0, 8), rng.randint(1, 40)),
        lambda: mc.RevertReplicas(rng.randint(1, 8), guard, "no progress"),
        lambda: mc.SetReplicas(rng.randint(1, 8), tuple(rng.choices(range(1, 6), k=rng.randint(0, 3))), guard, True),
        lambda: mc.SetReplicas(rng.randint(1, 8), tuple(rng.choices(range(1, 6), k=rng.randint(0, 4))), guard),
        lambda: mc.AdmitReplica(rng.randint(1, 8), rng.randint(1, 40)),
        lambda: mc.SetNodeState(rng.randint(1, 6), rng.choice(["active", "draining", "removed"])),
        lambda: mc.RecoverPartition(
            rng.randint(1, 8), rng.randint(1, 40), rng.choice([0, 7, 9]), rng.randint(0, 9), rng.randint(0, 9), guard
        ),
        lambda: mc.SetReplicationFactor(rng.randint(1, 5), rng.randint(0, 5)),
        lambda: mc.SetBalancing(
            rng.choice([None, True, False]), rng.choice([None, 0, 1, 7]), rng.choice([None, "", "leaders", "others"])
        ),
        lambda: mc.AlterConfig(
            rng.randint(0, 6), {f"k{key}": rng.choice(["x", "y", None]) for key in rng.sample(range(1, 4), 2)}
        ),
        lambda: mc.InitializeCluster(rng.choice(["c1", "c2", ""]), 1),
    ]
    return rng.choice(makers)()


def group_command(rng: random.Random, state: Metadata) -> mc.MetadataCommand:
    """Draw a command about consumer groups, which mostly fits the state: a target for an old epoch would test little."""
    name = rng.choice(["g1", "g1", "g2", "größe", "bad\n"])
    group = state.consumer_group(name)
    members = sorted(group.members) if group is not None else []
    member = rng.choice([*members, "m1", "m2", "m3", ""])
    known = group.members.get(member) if group is not None else None
    makers: list[Callable[[], mc.MetadataCommand]] = [
        lambda: mc.JoinConsumerGroup(
            name, member, rng.choice(["", "", "i1", "i2"]), "client", rng.choice(["", "r1"]),
            tuple(rng.sample(["flights", "a", "b.c"], rng.randint(0, 3))), rng.choice(["", "f.*"]), "",
            rng.choice([45_000, 0]), 300_000, must_exist=rng.random() < 0.2,
        ),
        lambda: mc.JoinConsumerGroup(name, rng.choice(["m1", "m2", "m3"]), "", "c", "", ("flights",), "", "", 45_000, 1),
        lambda: mc.LeaveConsumerGroup(name, tuple(rng.sample(["m1", "m2", "m3"], rng.randint(0, 3)))),
        lambda: target_assignment(rng, state, name, members),
        lambda: target_assignment(rng, state, name, members),
        lambda: target_assignment(rng, state, name, members),
        lambda: mc.ReleasePartitions(
            name, member, known.epoch - rng.choice([0, 0, 0, 1]) if known is not None else 7,
            tuple(part for part in (known.unreleased() if known is not None else ()) if rng.random() < 0.7),
        ),
        lambda: mc.RegrantPartitions(name, tuple((rng.randint(1, 3), rng.randint(0, 4)) for _ in range(3))),
        lambda: mc.TakeGroupEpoch(name, rng.random() < 0.5),
        lambda: mc.DeleteConsumerGroup(name, rng.choice([0, START_MS, START_MS + 90 * HOUR_MS])),
    ]  # fmt: skip
    return rng.choice(makers)()


def target_assignment(rng: random.Random, state: Metadata, name: str, members: Sequence[str]) -> mc.MetadataCommand:
    group = state.consumer_group(name)
    topics = [topic for topic in state.topics() if rng.random() < 0.8]
    targets: dict[str, dict[int, list[int]]] = {member: {} for member in members}
    for topic in topics:
        for number in range(len(topic.group_ids)):
            if members and rng.random() < 0.9:
                targets[rng.choice(members)].setdefault(topic.topic_id, []).append(number)
                if rng.random() < 0.01:
                    targets[rng.choice(members)].setdefault(topic.topic_id, []).append(number)
    return mc.SetTargetAssignment(
        name,
        group.row.epoch - rng.choice([0, 0, 0, 1]) if group is not None else 7,
        "sticky",
        tuple((topic.topic_id, len(topic.group_ids)) for topic in topics),
        tuple(
            mc.MemberTarget(member, tuple((topic_id, tuple(numbers)) for topic_id, numbers in target.items()))
            for member, target in targets.items()
        ),
    )


def metadata_history(rng: random.Random, length: int) -> list[Entry]:
    log = LogBuilder()
    shadow = Metadata()
    if rng.random() < 0.9:
        log.metadata(mc.InitializeCluster("c1", 1, bootstrap_uuid=rng.choice(["", "u1"])))
        for number in range(1, 5):
            log.metadata(register(f"u{number}"))
        log.metadata(mc.CreateTopic("flights", "log", 3, {}, plans(rng, 3)))
    for _ in range(length):
        log.time_ms += rng.choice([0, 0, 1, 1000, 30 * HOUR_MS])
        dice = rng.random()
        if dice < 0.06:
            log.append(rng.choice([EntryKind.EMPTY, EntryKind.MEMBERSHIP]), b"")
        elif dice < 0.5:
            # commands that fit depend on the state, so a replica applies the history while it is drawn
            for entry in log.entries[shadow.applied_index - GENESIS.index :]:
                shadow.apply(entry)
            log.metadata(group_command(rng, shadow))
        else:
            log.metadata(metadata_command(rng, log.next_index))
    return log.entries


def log_command(rng: random.Random, log: LogBuilder) -> lc.LogPartitionCommand:
    group = rng.choice(["g1", "g2", "größe", ""])
    member = rng.choice(["m1", "m2", ""])
    epoch = rng.randint(-1, 6)
    offset = rng.randint(-1, log.next_offset + 2)
    commit = lc.CommitOffset(group, member, epoch, offset, rng.choice(["", "note"]))
    makers: list[Callable[[], lc.LogPartitionCommand]] = [
        lambda: lc.OpenPartition(group, member, epoch),
        lambda: commit,
        lambda: lc.CommitOffsets((commit, lc.CommitOffset("plain", "", 0, offset))),
        lambda: lc.ResetOffset(group, epoch, offset),
        lambda: lc.ForgetOffsets(("g2", "größe", "none"), log.time_ms - rng.choice([0, HOUR_MS])),
        lambda: lc.TrimLog(offset),
    ]
    return rng.choice(makers)()


def log_history(rng: random.Random, length: int) -> list[Entry]:
    log = LogBuilder()
    next_sequences: dict[tuple[int, int], int] = {}
    for _ in range(length):
        log.time_ms += rng.choice([0, 0, 1, 1000, HOUR_MS, 10 * HOUR_MS])
        dice = rng.random()
        if dice < 0.05:
            log.append(rng.choice([EntryKind.EMPTY, EntryKind.MEMBERSHIP]), b"")
        elif dice < 0.15:
            log.append(EntryKind.DATA, bytes_of_no_batch(rng, log), rng.randint(1, 3))
        elif dice < 0.60:
            producer_id = rng.choice([0, 1, 2, 3, 4, NAMED_PRODUCER_BIT | 1, 2**64 - 1])
            epoch = rng.choice([0, 0, 0, 1, 2**64 - 1])
            count = rng.randint(1, 4)
            expected = next_sequences.get((producer_id, epoch), 0)
            first = expected if rng.random() < 0.9 else rng.randint(0, 20)
            next_sequences[producer_id, epoch] = first + count
            log.batch(producer_id, epoch, first, count)
        else:
            log.log(log_command(rng, log))
    return log.entries


def bytes_of_no_batch(rng: random.Random, log: LogBuilder) -> bytes:
    """Draw garbage that does not begin like a batch of another version, which would stop the replica."""
    while True:
        payload = garbage(rng, log)
        try:
            parse_header(payload)
        except UnsupportedBatchVersionError:
            continue
        except BatchFormatError:
            pass
        return payload


def garbage(rng: random.Random, log: LogBuilder) -> bytes:
    """Draw random bytes, or the damaged payload of an earlier entry."""
    if rng.random() < 0.5 or not log.entries:
        return rng.randbytes(rng.randint(0, 90))
    payload = bytearray(rng.choice(log.entries).payload)
    for _ in range(rng.randint(0, 2)):
        if payload:
            payload[rng.randrange(len(payload))] = rng.randrange(256)
    return bytes(payload[: rng.randint(0, len(payload))] if rng.random() < 0.5 else payload)


# ------------------------------------------------------------------------------------------------ the lives of a replica


def plain_life(make: Callable[[], Machine], entries: Iterable[Entry]) -> tuple[Machine, list[object]]:
    """Apply everything and drain nothing."""
    machine = make()
    return machine, [machine.apply(entry) for entry in entries]


def draining_life(
    make: Callable[[], Machine], entries: Iterable[Entry], is_drained: Callable[[], bool]
) -> tuple[Machine, list[object], Rows]:
    """Persist dirty rows at some points and at the end. Return the persisted rows as well."""
    machine = make()
    results: list[object] = []
    persisted: dict[bytes, bytes] = {}
    for entry in entries:
        results.append(machine.apply(entry))
        if is_drained():
            persist(machine, persisted)
    persist(machine, persisted)
    return machine, results, tuple(sorted(persisted.items()))


def restarting_life(make: Callable[[], Machine], entries: Sequence[Entry], rng: random.Random) -> Machine:
    """Persist and crash at random points. After each crash, restore the persisted rows and replay from an earlier entry."""
    machine = make()
    persisted: dict[bytes, bytes] = {}
    state_index, position, crashes_left = GENESIS.index, 0, 5
    while position < len(entries):
        machine.apply(entries[position])
        position += 1
        dice = rng.random()
        if dice < 0.3:
            persist(machine, persisted)
            state_index = machine.applied_index
        elif dice < 0.4 and crashes_left:
            crashes_left -= 1
            machine = make()
            machine.restore(sorted(persisted.items()), state_index)
            position = max(0, state_index - GENESIS.index - rng.randint(0, 3))
    return machine


def snapshot_life(make: Callable[[], Machine], entries: Sequence[Entry], position: int) -> Machine:
    """Begin with the rows of another replica that applied up to `position`, and receive the whole log again."""
    source, _ = plain_life(make, entries[:position])
    machine = make()
    machine.restore(source.rows(), source.applied_index)
    for entry in entries:
        machine.apply(entry)
    return machine


def persist(machine: Machine, persisted: dict[bytes, bytes]) -> None:
    for key, value in machine.take_dirty_rows():
        if value is None:
            persisted.pop(key, None)
        else:
            persisted[key] = value


def digest(rows: Iterable[tuple[bytes, bytes]]) -> str:
    found = hashlib.sha256()
    for key, value in rows:
        found.update(len(key).to_bytes(4, "big") + key + len(value).to_bytes(4, "big") + value)
    return found.hexdigest()


def seeded_digests(seeds: Iterable[int]) -> list[str]:
    digests = []
    for seed in seeds:
        for make, history in ((Metadata, metadata_history), (LogPartition, log_history)):
            machine, results = plain_life(make, history(random.Random(seed), 150))
            digests.append(digest(machine.rows()) + hashlib.sha256(repr(results).encode()).hexdigest())
    return digests


if __name__ == "__main__":
    sys.stdout.write("\n".join(seeded_digests(range(10))) + "\n")
