"""Random histories of a queue partition, drawn beside a twin that knows all messages, so that most commands meet one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raftmq.fsm.queue import commands as qc
from raftmq.fsm.queue.enqueued import encode_chain
from raftmq.fsm.queue.results import QueueApplied
from raftmq.fsm.queue.rows import SPAN_BITS
from raftmq.fsm.queue.settings import QueueSettings
from raftmq.message_checks import TIME_AFTER, TIME_AT, TIME_NONE, Times
from raftmq.queue_batch import MessageColumns, encode, encode_firing, seal_queue_batch
from raftmq.raft.entry import Entry, EntryKind

from tests.support.fsm.queue.host import QueueLog
from tests.support.fsm.queue.twin import DEAD, LEASED, Twin, TwinMessage

TENANTS = ["", "a", "b", "a.x", "a.y", "c.d.e"]
FAIRNESS = ["none", "round_robin", "weighted", "quiet_first"]


@dataclass
class History:
    entries: list[Entry]
    results: list[QueueApplied | None]
    counts: list[tuple[int, int, int]]
    """After each entry: ready messages, all messages, and the bytes of their bodies."""
    twin: Twin


class _Author:
    def __init__(self, rng: random.Random, twin: Twin, log: QueueLog, purge_share: float) -> None:
        self.rng = rng
        self.twin = twin
        self.log = log
        self.requests = 0
        self.purge_share = purge_share

    def entry(self) -> Entry:
        rng = self.rng
        self.log.time_ms += rng.choice([0, 0, 1, 1, 5, 30, 200]) if rng.random() < 0.98 else 40_000
        if self.purge_share and rng.random() < self.purge_share:
            return self.log.commands(qc.PurgeAll(), self.item())
        kind = rng.random()
        if kind < 0.35:
            return self.log.put(self.columns(rng.randint(1, 4)))
        if kind < 0.38:
            return self.chain()
        if kind < 0.41 and self.twin.schedules:
            return self.firing()
        if kind < 0.43:
            return self.log.append(rng.choice([EntryKind.EMPTY, EntryKind.MEMBERSHIP]), b"")
        if kind < 0.44:
            # its sequences stay empty: those after it belong to another run
            return self.log.append(EntryKind.DATA, b"neither a batch nor anything else", rng.choice([2, 2, 40_000]))
        items = tuple(self.item() for _ in range(rng.choice([1, 1, 1, 2, 3])))
        before = rng.choice([self.log.time_ms, self.log.time_ms, 0])
        spared = self.log.time_ms - rng.choice([0, 0, 30, 200])
        seed = rng.choice([0, rng.getrandbits(64)])
        due_max = rng.choice([0, 0, 1, 2, 3])
        return self.log.commands(
            *items,
            expire_before=before,
            jitter_seed=seed,
            spared_through=spared,
            due_max=due_max,
            numbers_after=rng.choice([0, 0, 0, 2, -1, 1 << 40]) if rng.random() < 0.1 else 0,
        )

    def columns(self, count: int) -> MessageColumns:
        rng = self.rng

        def column(draw: Callable[[], object], chance: float) -> list[object] | None:
            return [draw() for _ in range(count)] if rng.random() < chance else None

        def times(chance: float) -> Times | None:
            if rng.random() >= chance:
                return None
            kinds = [rng.choice([TIME_NONE, TIME_AFTER, TIME_AT]) for _ in range(count)]
            later = rng.choice([0, 0, 0, 40_000, 90_000])
            values = {
                TIME_NONE: 0,
                TIME_AFTER: later + rng.randint(0, 300),
                TIME_AT: self.log.time_ms + later + rng.randint(-50, 300),
            }
            return Times(kinds, [values[kind] for kind in kinds])

        ids = column(lambda: rng.choice([None, b"i1", b"i2", b"i3", b"i4"]), 0.3)
        replaces = None if ids is None else [int(id_ is not None and rng.random() < 0.5) for id_ in ids]
        return MessageColumns(
            [rng.randbytes(rng.randint(0, 9)) for _ in range(count)],
            priorities=column(lambda: rng.choice([-5, 0, 0, 7]), 0.4),
            due=times(0.3),
            expiry=times(0.2),
            replaces=replaces,
            tenants=column(lambda: rng.choice(TENANTS).encode(), 0.6),
            ids=ids,
            keys=column(lambda: rng.choice([None, b"k1", b"k2"]), 0.5),
        )

    def chain(self) -> Entry:
        rng = self.rng
        known = self.messages(leased=True)
        tokens = [(m.sequence, m.lease_number) for m in rng.sample(known, min(len(known), rng.randint(1, 3)))]
        if not tokens or rng.random() < 0.3:
            tokens.append((rng.randint(0, self.twin.next_sequence + 2), rng.randint(1, 3)))
        if rng.random() < 0.2:
            tokens.append(tokens[0])
        put_counts = [rng.choice([0, 1, 1, 2]) for _ in tokens]
        put_counts[-1] = max(put_counts[-1], 1)
        count = sum(put_counts)
        named = put_counts if rng.random() < 0.95 else [one + 1 for one in put_counts]
        sequences, numbers = zip(*tokens, strict=True)
        chain = qc.Chain(self.session(), self.request(), sequences, numbers, tuple(named))
        batch = seal_queue_batch(encode(self.columns(count)), message_count=count)
        return self.log.append(EntryKind.DATA, encode_chain(chain, batch), count)

    def firing(self) -> Entry:
        name = self.rng.choice(sorted(self.twin.schedules))
        row = self.twin.schedules[name]
        due = max(row.next_due, 0)
        next_due = self.rng.choice([due + 50, -1])
        payload = encode_firing(
            name.encode(), row.version - self.rng.choice([0, 0, 0, 1]), due, next_due, encode(self.columns(1))
        )
        return self.log.append(EntryKind.DATA, payload, 1)

    def item(self) -> qc.Item:
        rng = self.rng
        weighted: list[tuple[int, Callable[[], qc.Item]]] = [
            (30, self.lease), (30, self.settle), (10, self.change), (5, self.continue_job), (3, self.start_job),
            (2, lambda: qc.CancelJob(self.job())), (1, lambda: qc.PurgeAll() if rng.random() < 0.3 else qc.Tick()),
            (4, self.schedule), (3, lambda: qc.OpenSession()), (1, lambda: qc.CloseSession(self.session())),
            (4, self.configure), (2, lambda: qc.PauseTenant(rng.choice(TENANTS), rng.choice([10, 100, -1]))),
            (4, lambda: qc.ResumeTenant(rng.choice(TENANTS))), (2, self.copies),
            (4, lambda: qc.Tick()),
        ]  # fmt: skip
        return rng.choices([make for _, make in weighted], [weight for weight, _ in weighted])[0]()

    def session(self) -> int:
        return self.rng.choice([0, 0, *self.twin.sessions, self.twin.next_session])

    def request(self) -> int:
        self.requests += 1
        return max(1, self.requests - self.rng.choice([0, 0, 0, 1, 2, 9]))

    def lease(self) -> qc.Lease:
        rng = self.rng
        tenants = tuple(rng.sample(TENANTS[1:], rng.randint(1, 2))) if rng.random() < 0.2 else ()
        key = b""
        if rng.random() < 0.1:
            tenants, key = (rng.choice(TENANTS),), b"k1"
        lease_ms = rng.choice([5, 50, 500])
        bytes_max = rng.choice([0, 0, 0, 1, 9, 20])
        return qc.Lease(self.session(), self.request(), rng.choice([1, 2, 3, 8]), lease_ms, tenants, key, bytes_max)

    def messages(self, *, leased: bool) -> list[TwinMessage]:
        return [m for m in self.twin.messages.values() if (m.state == LEASED) is leased]

    def settle(self) -> qc.Settle:
        rng = self.rng
        chosen = rng.sample(known := self.messages(leased=True), min(len(known), rng.randint(0, 3)))
        firsts = [m.sequence for m in chosen]
        counts = [rng.choice([1, 1, 1, 2, 3]) for _ in chosen]
        numbers = [m.lease_number - rng.choice([0, 0, 0, 0, 1]) for m in chosen]
        if rng.random() < 0.2:
            firsts.append(rng.randint(0, self.twin.next_sequence + 2))
            counts.append(rng.randint(1, 3))
            numbers.append(rng.randint(1, 3))
        count = len(firsts)
        details = (
            qc.SettleDetail(
                delay_ms=rng.choice([-1, 0, 40]), priority=rng.choice([None, 3]), error=rng.choice(["", "e"])
            ),
            qc.SettleDetail(
                is_counted=False, delay_ms=rng.choice([-1, 20]), lease_ms=60, progress=rng.choice(["", "p"])
            ),
        )
        return qc.Settle(
            self.session(), self.request(),
            tuple(rng.choices([1, 1, 1, 2, 2, 3, 4], k=count)), tuple(firsts), tuple(counts), tuple(numbers),
            tuple(rng.choices([0, 0, 1, 2], k=count)) if rng.random() < 0.6 else (), details,
        )  # fmt: skip

    def change(self) -> qc.Change:
        return qc.Change(tuple(self.change_item() for _ in range(self.rng.randint(1, 3))))

    def change_item(self) -> qc.ChangeItem:
        rng = self.rng
        m = rng.choice([*self.twin.messages.values(), None])
        sequence = rng.randint(0, self.twin.next_sequence + 1) if m is None else m.sequence
        operation = rng.choice([1, 1, 2, 3]) if m is None or m.state != DEAD else rng.choice([1, 3, 3])
        return qc.ChangeItem(
            operation, sequence, rng.choice([b"", b"", b"i1", b"i2"]),
            rng.choice([-1, -1, 0 if m is None else m.version, 3]), rng.choice([-1, -1, 0, 60]),
            rng.choice([-1, -1, self.log.time_ms - 5, self.log.time_ms + 90]), rng.choice([None, None, 1, -9]),
        )  # fmt: skip

    def job(self) -> int:
        return self.rng.choice([*self.twin.jobs, self.twin.next_job])

    def start_job(self) -> qc.StartJob:
        rng = self.rng
        chosen = qc.JobFilter(
            rng.choice([0b111110, 0b000110, 0b010000]), tuple(rng.sample(TENANTS, rng.choice([0, 0, 1]))),
            rng.choice([0, self.log.time_ms - 30, self.log.time_ms + 30]), rng.choice([0, 0, 1]), rng.choice([0, 0, 8]),
        )  # fmt: skip
        return qc.StartJob(rng.choice([1, 2, 3]), chosen)

    def continue_job(self) -> qc.ContinueJob:
        return qc.ContinueJob(self.job(), self.rng.choice([1, 2, 500]))

    def schedule(self) -> qc.Item:
        rng = self.rng
        name = rng.choice(["s1", "s2"])
        row = self.twin.schedules.get(name)
        version = rng.choice([-1, -1, 0 if row is None else row.version, 1])
        due = self.log.time_ms + rng.randint(0, 100)
        items: list[qc.Item] = [
            qc.PutSchedule(name, b"rule", due, rng.random() < 0.2, version),
            qc.PutSchedule(name, bytes(rng.choice([0, 4, 9])), due),
            qc.PutSchedule(name, b"rule", qc.KEEP_DUE),
            qc.ChangeSchedule(name, qc.KEEP_DUE, rng.random() < 0.5, version),
            qc.ChangeSchedule(name, due, rng.random() < 0.5, version),
            qc.DeleteSchedule(name, version),
        ]
        if row is not None:
            items.append(qc.SkipFirings(name, row.version, row.next_due, rng.choice([-1, due + 200]), 3))
        return rng.choice(items)

    def copies(self) -> qc.Item:
        rng, epoch = self.rng, self.twin.copy_epoch
        if rng.random() < 0.3:
            return qc.AimCopies(rng.randint(1, 2), rng.randint(0, 1), epoch + rng.choice([1, 1, 1, 0, 2]))
        return qc.CopyDead(self.twin.copied_dead + rng.randint(-1, 3), epoch - rng.choice([0, 0, 0, 1]))

    def configure(self) -> qc.Configure:
        rng = self.rng
        return qc.Configure(
            QueueSettings(
                attempts_max=rng.choice([0, 1, 2, 4]),
                backoff_base_ms=rng.choice([0, 0, 10]),
                backoff_jitter_percent=rng.choice([0, 50]),
                message_ttl_ms=rng.choice([0, 0, 150]),
                is_expired_kept=rng.random() < 0.4,
                dedupe_window_ms=rng.choice([0, 100]),
                is_ordered_by_key=rng.random() < 0.7,
                fairness=rng.choice(FAIRNESS),
                tenant_weights=(("a", 3), ("a.*", 2)),
                leased_max=rng.choice([0, 0, 5]),
                leased_per_tenant_max=rng.choice([0, 0, 2]),
                tenant_rate_per_second=rng.choice([0, 0, 20]),
                tenant_rate_burst=2,
                has_dead_letter_topic=rng.random() < 0.2,
            )
        )


def history(
    rng: random.Random, length: int, see: Callable[[Twin], None] = lambda twin: None, *, purge_share: float = 0.0
) -> History:
    """Return random entries, and the twin's answer to each. `purge_share` of them purge everything, besides the usual ones."""
    twin, log = Twin(), QueueLog()
    log.time_ms = (log.time_ms >> SPAN_BITS << SPAN_BITS) - 1_000  # due times are in two spans
    author = _Author(rng, twin, log, purge_share)
    results: list[QueueApplied | None] = []
    counts: list[tuple[int, int, int]] = []
    for _ in range(length):
        results.append(twin.apply(author.entry()))
        counts.append(twin.counts())
        see(twin)
    return History(log.entries, results, counts, twin)


def first_difference(entries: Sequence[Entry], found: Sequence[object], expected: Sequence[object]) -> str:
    """Say where results differ, for a failing test."""
    for at, (entry, one, other) in enumerate(zip(entries, found, expected, strict=True)):
        if one != other:
            payload = qc.decode_commands(entry.payload) if entry.kind is EntryKind.COMMAND else entry.payload
            return f"at {at}: {payload!r}\n  {one}\n  instead of\n  {other}"
    return ""
