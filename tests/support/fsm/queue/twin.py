"""A slow and obvious queue partition: plain lists, no windows, no heaps, no disk. It gives the answers that the real one must give.

Whose turn it is comes from the same tree of tenants, one message at a time: that tree has a twin of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from raftmq.fsm.queue import commands as qc
from raftmq.fsm.queue import limits
from raftmq.fsm.queue import results as qr
from raftmq.fsm.queue import tenants as tenants_module
from raftmq.fsm.queue.enqueued import ReadEntry, read_entry
from raftmq.fsm.queue.fairness import FairnessTree, ancestors
from raftmq.fsm.queue.limits import HOUSEKEEPING_MAX, SESSION_EXPIRY_MS, SESSION_REQUESTS, SLICE_ROWS_MAX, WORK_MAX
from raftmq.fsm.queue.rates import TenantRates
from raftmq.fsm.queue.results import Code
from raftmq.fsm.queue.settings import QueueSettings, backoff_ms
from raftmq.fsm.queue.tenants import PAUSED_FOREVER, fairness_of, rate_of
from raftmq.message_checks import TIME_AFTER, TIME_AT, Times
from raftmq.queue_batch import QueueFields
from raftmq.raft.entry import Entry, EntryKind

READY, DELAYED, LEASED, DEAD, LINED = "ready", "delayed", "leased", "dead", "lined"
STATE_NUMBERS = {READY: 1, DELAYED: 2, LEASED: 3, DEAD: 4, LINED: 5}


@dataclass
class TwinMessage:
    sequence: int
    tenant: str
    priority: int
    due: int
    enqueued_at: int
    body_bytes: int
    state: str = ""
    expires_at: int = 0
    attempts: int = 0
    lease_number: int = 0
    version: int = 0
    deadline: int = 0
    session: int = 0
    id: bytes = b""
    id_until: int = 0
    key: bytes = b""
    is_ordered: bool = False
    error: str = ""
    progress: str = ""
    dead_number: int = 0
    dead_at: int = 0
    dead_reason: int = 0
    leased_at: int = 0

    @property
    def line(self) -> tuple[str, bytes] | None:
        return (self.tenant, self.key) if self.is_ordered else None


@dataclass
class TwinId:
    sequence: int
    until: int
    is_finished: bool = False


@dataclass
class TwinSession:
    active_at: int
    requests: dict[int, qr.ItemResult] = field(default_factory=dict)


@dataclass
class TwinJob:
    command: qc.StartJob
    through: int
    cursor: int = 0
    done: int = 0


@dataclass(frozen=True)
class TwinVoid:
    """A tenant whose messages were purged, as the tree still sees it."""

    leased: int
    has_ready: bool


@dataclass
class TwinSchedule:
    definition: bytes
    next_due: int
    version: int
    is_paused: bool
    last_due: int = -1
    fired_count: int = 0
    skipped_count: int = 0


class Twin:
    def __init__(self) -> None:
        self.now = 0
        self.next_sequence = 0
        self.settings = QueueSettings()
        self.messages: dict[int, TwinMessage] = {}
        self.ids: dict[bytes, TwinId] = {}
        self.holders: dict[tuple[str, bytes], int] = {}
        self.sessions: dict[int, TwinSession] = {}
        self.jobs: dict[int, TwinJob] = {}
        self.schedules: dict[str, TwinSchedule] = {}
        self.pauses: dict[str, int] = {}
        self.next_session = self.next_job = self.next_dead = self.next_version = 1
        self.copied_dead = self.copy_epoch = 0
        self.copy_first = 1
        self.copy_target = (0, 0)
        self.jitter_seed = self.leases_ended_through = self.numbers_after = 0
        self.unpurged: dict[str, TwinVoid | None] = {}
        """While everything is purged: the tenants to be visited, by number. None: messages came in the meantime."""
        self.tree = FairnessTree()
        self.rates = TenantRates()
        self.numbers: dict[str, int] = {"": 0}
        self._freed: list[str] = []
        self._are_frees_gathered = False

    # ------------------------------------------------------------------------------------------------------- entries

    def apply(self, entry: Entry) -> qr.QueueApplied | None:
        result = self._apply(entry)
        self._report()
        return result

    def _apply(self, entry: Entry) -> qr.QueueApplied | None:
        if entry.kind is EntryKind.DATA:
            self._advance(entry.append_time_ms)
            self.next_sequence = entry.base_offset + entry.record_count
            read = read_entry(entry.payload)
            return None if read is None else self._data(read, entry.base_offset)
        if entry.kind is EntryKind.COMMAND:
            self._advance(entry.append_time_ms)
            commands = qc.decode_commands(entry.payload)
            assert commands is not None
            return self._commands(commands)
        return None

    def _advance(self, time_ms: int) -> None:
        self.now = max(self.now, time_ms)
        self.pauses = {path: until for path, until in self.pauses.items() if until > self.now}
        if self.rates.rate is not None:
            self.rates.take_unblocked(self.now, 100)

    def _data(self, read: ReadEntry, base: int) -> qr.Enqueued | qr.Chained:
        if read.firing is not None and not self._fire(read):
            return qr.Enqueued(0, is_stale=True)
        if read.chain is not None:
            return self._chain(read.chain, read.fields, base)
        return self._enqueue(read.fields, base)

    def _enqueue(self, fields: QueueFields, base: int, omitted: frozenset[int] = frozenset()) -> qr.Enqueued:
        count = len(fields.body_lengths)
        repeated, replaced = [], []
        dues = self._times(fields.due, count, self.now)
        ttl = self.settings.message_ttl_ms
        expiries = self._times(fields.expiry, count, self.now + ttl if ttl else 0)
        for at in range(count):
            tenant = fields.tenants.names[fields.tenants.places[at]].decode()
            self._add_tenant(tenant)
            if at in omitted:
                continue
            m = TwinMessage(
                base + at,
                tenant,
                fields.priorities[at] if fields.priorities else 0,
                dues[at],
                self.now,
                fields.body_lengths[at] + len((fields.headers[at] if fields.headers else None) or b""),
            )
            m.expires_at = expiries[at]
            m.id = (fields.ids[at] if fields.ids else None) or b""
            m.key = (fields.keys[at] if fields.keys else None) or b""
            m.is_ordered = bool(m.key) and self.settings.is_ordered_by_key
            known = self.ids.get(m.id) if m.id else None
            if known is not None and not (known.is_finished and known.until <= self.now):
                old = self.messages.get(known.sequence) if fields.replaces and fields.replaces[at] else None
                if old is None or known.is_finished or old.state in (LEASED, DEAD):
                    repeated.append((at, known.sequence))
                    continue
                replaced.append((at, old.sequence))
                m.version = old.version + 1
                old.id = b""
                self._finish(old)
            if m.id:
                m.id_until = self.now + self.settings.dedupe_window_ms
                self.ids[m.id] = TwinId(m.sequence, m.id_until)
            self.messages[m.sequence] = m
            self._admit(m)
        return qr.Enqueued(count - len(repeated) - len(omitted), tuple(repeated), tuple(replaced))

    def _times(self, times: Times | None, count: int, default: int) -> list[int]:
        if times is None:
            return [default] * count
        return [
            self.now + value if kind == TIME_AFTER else value if kind == TIME_AT else default
            for kind, value in zip(times.kinds, times.values_ms, strict=True)
        ]

    def _commands(self, commands: qc.Commands) -> qr.Results:
        self.sessions = {
            number: one for number, one in self.sessions.items() if one.active_at + SESSION_EXPIRY_MS > self.now
        }
        self.jitter_seed = commands.jitter_seed
        self.numbers_after = min(max(0, commands.lease_numbers_after), qc.LEASE_NUMBERS_AFTER_MAX)
        due_max = min(commands.due_max, HOUSEKEEPING_MAX) if commands.due_max > 0 else HOUSEKEEPING_MAX
        ends_max = (due_max + 1) // 2 if commands.due_max else due_max
        ended = self._end_and_expire(commands.expire_before, commands.spared_through, ends_max)
        done = ended + self._promote(due_max - ended)
        self._forget_ids()
        has_more_due = ended == ends_max or done == due_max
        left, results = WORK_MAX - done, []
        for item in commands.items:
            result, used = self._execute(item, left)
            left -= used
            results.append(result)
        self._continue_purge()
        return qr.Results(tuple(results), has_more_due or bool(self.unpurged), done)

    def _begin_purge(self) -> None:
        """Let the tree keep the tenants as they were, until the purge visits them."""
        paths = sorted(self.numbers, key=lambda path: self.numbers[path])
        before = {path: void for path, void in self.unpurged.items() if void is not None}
        self.unpurged = {path: before.get(path) or self._void_of(path) for path in paths}

    def _void_of(self, path: str) -> TwinVoid:
        mine = [m for m in self.messages.values() if m.tenant == path]
        return TwinVoid(sum(m.state == LEASED for m in mine), any(m.state == READY for m in mine))

    def _continue_purge(self) -> None:
        for path in list(self.unpurged)[: vars(tenants_module)["TENANTS_RESET_MAX"]]:
            self._renew(path)
            del self.unpurged[path]

    def _renew(self, path: str) -> None:
        void = self.unpurged.get(path)
        if void is not None:
            self.unpurged[path] = None
            if void.leased:
                self.tree.free(self.numbers[path], void.leased)

    # -------------------------------------------------------------------------------------------------- housekeeping

    def _end_and_expire(self, expire_before: int, spared_through: int, count_max: int) -> int:
        self.leases_ended_through = before = min(expire_before, self.now)

        def has_ended(m: TwinMessage) -> bool:
            return m.state == LEASED and m.deadline <= (before if m.leased_at <= spared_through else self.now)

        ended = self._first(count_max, lambda m: (m.deadline, m.sequence), has_ended)
        for m in ended:
            m.version += 1
            self._end_attempt(m)
        expired = self._first(
            count_max - len(ended),
            lambda m: (m.expires_at, m.sequence),
            lambda m: m.state not in (LEASED, DEAD) and self._is_expired(m),
        )
        for m in expired:
            self._expire(m)
        return len(ended) + len(expired)

    def _promote(self, count_max: int) -> int:
        due = self._first(count_max, lambda m: (m.due, m.sequence), lambda m: m.state == DELAYED and m.due <= self.now)
        for m in due:
            if m.line:
                m.deadline = self.now
            self._admit(m)
        return len(due)

    def _forget_ids(self) -> None:
        ends = sorted((one.until, id_) for id_, one in self.ids.items() if one.is_finished and one.until <= self.now)
        for _, id_ in ends[:100]:
            del self.ids[id_]

    def _first(
        self, count: int, key: Callable[[TwinMessage], object], chosen: Callable[[TwinMessage], bool]
    ) -> list[TwinMessage]:
        return sorted(filter(chosen, self.messages.values()), key=key)[:count]

    def _is_expired(self, m: TwinMessage) -> bool:
        return 0 < m.expires_at <= self.now

    def _expire(self, m: TwinMessage) -> None:
        if self.settings.is_expired_kept:
            m.version += 1
            self._bury(m, 3)
        else:
            self._finish(m)

    def _end_attempt(self, m: TwinMessage) -> bool:
        if 0 < self.settings.attempts_max <= m.attempts:
            self._bury(m, 2)
            return True
        delay = backoff_ms(self.settings, m.attempts, m.sequence, self.jitter_seed)
        if delay:
            m.due = self.now + delay
        self._give_back(m)
        return False

    def _give_back(self, m: TwinMessage) -> None:
        if self._is_expired(m):
            self._expire(m)
        else:
            self._leave(m)
            m.state = READY if m.due <= self.now else DELAYED

    # --------------------------------------------------------------------------------------------------- transitions

    def _leave(self, m: TwinMessage) -> None:
        if m.state != READY:
            m.deadline = self.now
        if m.state == LEASED:
            m.leased_at = 0
            self._freed.append(m.tenant)
            if not self._are_frees_gathered:
                self._free()

    def _free(self) -> None:
        """Tell the tree whose leases ended. The leases of one accepted run end together."""
        self._are_frees_gathered = False
        for path in sorted(set(self._freed)):
            self.tree.free(self.numbers[path], self._freed.count(path))
        self._freed.clear()

    def _admit(self, m: TwinMessage) -> None:
        if m.due > self.now:
            m.state = DELAYED
            return
        line = m.line
        if line is None:
            m.state = READY
            return
        holder = self.messages.get(self.holders.get(line, -1))
        if holder is None or holder is m:
            self.holders[line] = m.sequence
            m.state = READY
        elif m.sequence > holder.sequence or holder.state != READY:
            m.state = LINED
        else:
            holder.state = LINED
            self.holders[line] = m.sequence
            m.state = READY

    def _let_go(self, m: TwinMessage) -> None:
        """Take a message out of its line, whose next message becomes ready if this one held it."""
        if m.line is None or self.holders.get(m.line) != m.sequence:
            return
        del self.holders[m.line]
        waiting = [one for one in self.messages.values() if one.line == m.line and one.state == LINED]
        if waiting:
            first = min(waiting, key=lambda one: one.sequence)
            self.holders[m.line] = first.sequence
            first.state = READY
            first.deadline = self.now

    def _finish(self, m: TwinMessage) -> None:
        self._leave(m)
        del self.messages[m.sequence]
        self._let_go(m)
        if m.id:
            if m.id_until <= self.now:
                del self.ids[m.id]
            else:
                self.ids[m.id].is_finished = True

    def _bury(self, m: TwinMessage, reason: int) -> None:
        self._leave(m)
        m.state = DEAD
        self._let_go(m)
        m.expires_at = 0
        m.dead_number, m.dead_at, m.dead_reason = self.next_dead, self.now, reason
        self.next_dead += 1

    # --------------------------------------------------------------------------------------------------------- items

    def _execute(self, item: qc.Item, work: int) -> tuple[qr.ItemResult, int]:
        match item:
            case qc.Lease() | qc.Settle():
                return self._request(item, work)
            case qc.Change():
                outcomes = [self._change(one) for one in item.items[:work]]
                codes, versions = [one[0] for one in outcomes], [one[1] for one in outcomes]
                missing = len(item.items) - len(outcomes)
                return qr.Changed((*codes, *(Code.OVER_LIMIT,) * missing), (*versions, *(0,) * missing)), len(outcomes)
            case qc.ContinueJob():
                wanted = min(item.messages_max, work)
                return self._continue_job(item.job, wanted), wanted
            case _:
                return self._plain(item), 0

    def _request(self, item: qc.Lease | qc.Settle, work: int) -> tuple[qr.ItemResult, int]:
        known = self._known(item.session, item.request)
        if known is not None:
            return known, 0
        result: qr.Leased | qr.Settled
        if isinstance(item, qc.Lease):
            result, used = self._lease(item, work)
        else:
            result, used = self._settle(item, work)
        if item.session:
            session = self.sessions[item.session]
            session.active_at = self.now
            session.requests[item.request] = result
            if len(session.requests) > SESSION_REQUESTS:
                del session.requests[min(session.requests)]
        return result, used

    def _known(self, number: int, request: int) -> qr.ItemResult | None:
        if not number:
            return None
        session = self.sessions.get(number)
        if session is None:
            return qr.Refused(Code.UNKNOWN_SESSION)
        if request in session.requests:
            return session.requests[request]
        is_old = len(session.requests) == SESSION_REQUESTS and request < min(session.requests)
        return qr.Refused(Code.STALE_REQUEST) if is_old else None

    def _plain(self, item: qc.Item) -> qr.ItemResult:
        match item:
            case qc.StartJob():
                number = self.next_job
                self.next_job += 1
                through = (self.next_sequence if item.kind == qc.JobKind.PURGE else self.next_dead) - 1
                self.jobs[number] = TwinJob(item, through)
                return qr.JobStarted(number)
            case qc.CancelJob():
                job = self.jobs.pop(item.job, None)
                return qr.Refused(Code.NO_SUCH_JOB) if job is None else qr.JobProgress(job.done, is_finished=True)
            case qc.PurgeAll():
                count = len(self.messages)
                self._begin_purge()
                self.messages.clear()
                self.ids.clear()
                self.holders.clear()
                self.jobs.clear()
                if self.copied_dead != self.next_dead - 1:
                    self.copied_dead = self.next_dead - 1
                    self.copy_epoch, self.copy_first = self.copy_epoch + 1, self.next_dead
                return qr.Purged(count)
            case qc.PutSchedule() | qc.ChangeSchedule() | qc.DeleteSchedule():
                return self._schedule(item)
            case qc.SkipFirings():
                return self._skip(item)
            case qc.OpenSession():
                self.sessions[self.next_session] = TwinSession(self.now)
                self.next_session += 1
                return qr.SessionOpened(self.next_session - 1)
            case qc.CloseSession():
                self.sessions.pop(item.session, None)
            case qc.Configure():
                self.settings = item.settings
                self.tree.configure(fairness_of(item.settings))
                if rate_of(item.settings) != self.rates.rate:
                    self.rates.configure(rate_of(item.settings), self.now)
            case qc.PauseTenant():
                self._add_tenant(item.tenant)
                self.pauses[item.tenant] = PAUSED_FOREVER if item.pause_ms < 0 else self.now + item.pause_ms
            case qc.ResumeTenant():
                self._add_tenant(item.tenant)
                self.pauses.pop(item.tenant, None)
            case qc.AimCopies():
                if item.epoch == self.copy_epoch + 1:
                    self.copy_target = (item.topic_id, item.partition)
                    self.copy_epoch, self.copy_first = item.epoch, self.copied_dead + 1
            case qc.CopyDead() if item.epoch == self.copy_epoch:
                self.copied_dead = max(self.copied_dead, min(item.through_number, self.next_dead - 1))
            case _:
                pass
        return qr.Done()

    # -------------------------------------------------------------------------------------------------------- leasing

    def _lease(self, item: qc.Lease, work: int) -> tuple[qr.Leased, int]:
        deadline = self.now + min(item.lease_ms, self.settings.lease_ms_max)
        chosen: list[TwinMessage] = []
        expired = 0
        wanted = 1 if item.key else item.messages_max
        while len(chosen) < wanted and len(chosen) + expired < work and not self._is_full():
            self._report()
            m = self._leasable_head(item.tenants[0], item.key) if item.key else self._next(item.tenants)
            if m is not None and self._is_expired(m):
                self._expire(m)
                expired += 1
                continue
            if m is None or (chosen and 0 < item.bytes_max < m.body_bytes + sum(one.body_bytes for one in chosen)):
                break
            chosen.append(self._take(m, deadline, item.session))
        touched = len(chosen) + expired
        is_cut = not item.key and touched == work and len(chosen) < wanted
        return self._leased(chosen, deadline, has_more=is_cut and self.is_leasable(item.tenants)), touched

    def is_leasable(self, subtrees: tuple[str, ...]) -> bool:
        return not self._is_full() and self._next(subtrees) is not None

    def due_by(self, time: int, subtrees: tuple[str, ...], key: bytes) -> int:
        """Return how many messages would be promoted by an entry of this time and could be leased by it, besides those that are ready."""
        if self._is_full():
            return 0
        found: dict[str, int] = {}
        lines = set()
        for m in self.messages.values():
            is_wanted = not subtrees or any(m.tenant == top or m.tenant.startswith(f"{top}.") for top in subtrees)
            if (
                m.state != DELAYED
                or m.due > time
                or not is_wanted
                or (key and m.key != key)
                or 0 < m.expires_at <= time
            ):
                continue
            if m.line is not None and (m.line in lines or self.holders.get(m.line, m.sequence) != m.sequence):
                continue
            lines |= {m.line} - {None}
            found[m.tenant] = found.get(m.tenant, 0) + 1
        total = 0
        for path, count in found.items():
            room = self.tree.lease_room(self.numbers[path])
            if self._may_lease(path):
                total += count if room is None else max(0, min(count, room - len(self._ready(path))))
        if self.settings.leased_max:
            total = min(total, self.settings.leased_max - sum(m.state == LEASED for m in self.messages.values()))
        return total

    def leasable_count(self, subtrees: tuple[str, ...]) -> int:
        """Return how many ready messages could be leased as far as the limits and pauses of tenants and the partition say."""
        if not self.is_leasable(subtrees):
            return 0
        total = 0
        for path, number in self.numbers.items():
            is_wanted = not subtrees or any(path == top or path.startswith(f"{top}.") for top in subtrees)
            room = self.tree.lease_room(number)
            if is_wanted and not self._is_held(path):
                total += len(self._ready(path)) if room is None else min(len(self._ready(path)), room)
        if self.settings.leased_max:
            total = min(total, self.settings.leased_max - sum(m.state == LEASED for m in self.messages.values()))
        return total

    def is_key_leasable(self, tenant: str, key: bytes) -> bool:
        return self._leasable_head(tenant, key) is not None

    def _leasable_head(self, tenant: str, key: bytes) -> TwinMessage | None:
        m = self.messages.get(self.holders.get((tenant, key), -1))
        is_leasable = m is not None and m.state == READY and not self._is_full() and self._may_lease(tenant)
        return m if is_leasable else None

    def counts(self) -> tuple[int, int, int]:
        """Return the number of ready messages, of all messages, and the bytes of their bodies."""
        messages = self.messages.values()
        return sum(m.state == READY for m in messages), len(messages), sum(m.body_bytes for m in messages)

    def next_change(self) -> int | None:
        """Return when time alone next changes something: a lease ends, a message expires or is due, or a pause ends."""
        times = [m.deadline for m in self.messages.values() if m.state == LEASED]
        times += [m.expires_at for m in self.messages.values() if m.expires_at and m.state != LEASED]
        times += [m.due for m in self.messages.values() if m.state == DELAYED]
        times += [until for until in self.pauses.values() if until < PAUSED_FOREVER]
        next_token = self.rates.next_at() if self.rates.rate is not None else None
        times += [] if next_token is None else [next_token]
        return min(times, default=None)

    def _is_full(self) -> bool:
        if self.unpurged or self.pauses.get("", 0) > self.now:
            return True
        return 0 < self.settings.leased_max <= sum(m.state == LEASED for m in self.messages.values())

    def _next(self, subtrees: tuple[str, ...]) -> TwinMessage | None:
        self._report()
        number = self.tree.choose(subtrees or None)
        if number is None:
            return None
        return next(self._ready(path)[0] for path, one in self.numbers.items() if one == number)

    def _report(self) -> None:
        """Tell the tree who has something leasable, and then who has nothing: before each choice, and at the end of each entry."""
        empty = []
        for path, number in self.numbers.items():
            ready = self._ready(path)
            void = self.unpurged.get(path)
            if void is not None and void.has_ready and not self._is_held(path):
                self.tree.set_leasable(number, True, (0, 0, 0))
            elif ready and not self._is_held(path):
                self.tree.set_leasable(number, True, (ready[0].priority, ready[0].due, ready[0].sequence))
            else:
                empty.append(number)
        for number in empty:
            self.tree.set_leasable(number, False)

    def _ready(self, path: str) -> list[TwinMessage]:
        ready = [m for m in self.messages.values() if m.state == READY and m.tenant == path]
        return sorted(ready, key=lambda m: (m.priority, m.due, m.sequence))

    def _is_held(self, path: str) -> bool:
        if self.rates.rate is not None and self.rates.is_blocked(self.numbers[path]):
            return True
        return bool(path) and any(self.pauses.get(one, 0) > self.now for one in (*ancestors(path), path))

    def _may_lease(self, path: str) -> bool:
        return not self._is_held(path) and self.tree.lease_room(self.numbers[path]) != 0

    def _take(self, m: TwinMessage, deadline: int, session: int) -> TwinMessage:
        m.state, m.deadline, m.session, m.leased_at = LEASED, deadline, session, self.now
        m.attempts += 1
        m.version += 1
        m.lease_number = max(m.lease_number, self.numbers_after) + 1
        self.tree.charge(self.numbers[m.tenant])
        self.rates.take(self.numbers[m.tenant], 1, self.now)
        return m

    def _leased(self, chosen: list[TwinMessage], deadline: int, *, has_more: bool) -> qr.Leased:
        runs: list[list[int]] = []
        for m in chosen:
            if runs and runs[-1][0] + runs[-1][1] == m.sequence and runs[-1][2] == m.lease_number:
                runs[-1][1] += 1
            else:
                runs.append([m.sequence, 1, m.lease_number])
        first, counts, numbers = zip(*runs, strict=True) if runs else ((), (), ())
        return qr.Leased(first, counts, numbers, deadline, has_more)

    def _add_tenant(self, path: str) -> None:
        for one in (*ancestors(path), path):
            if one not in self.numbers:
                self.numbers[one] = len(self.numbers)
                self.tree.add(self.numbers[one], one)
        self._renew(path)

    # ------------------------------------------------------------------------------------------------------- settling

    def _settle(self, item: qc.Settle, work: int) -> tuple[qr.Settled, int]:
        codes: list[int] = []
        named = 0
        for at, operation in enumerate(item.operations):
            detail = qc.SettleDetail()
            if item.detail_numbers and item.detail_numbers[at]:
                detail = item.details[item.detail_numbers[at] - 1]
            self._are_frees_gathered = operation == qc.Operation.ACCEPT
            for sequence in range(item.first_sequences[at], item.first_sequences[at] + item.counts[at]):
                if named == work:
                    codes.append(Code.OVER_LIMIT)
                    continue
                named += 1
                codes.append(self._settle_one(operation, sequence, item.lease_numbers[at], detail))
            self._free()
        return self._settled(codes), named

    def _settled(self, codes: Iterable[int]) -> qr.Settled:
        runs: list[list[int]] = []
        for code in codes:
            if runs and runs[-1][0] == code:
                runs[-1][1] += 1
            else:
                runs.append([int(code), 1])
        return qr.Settled(tuple(code for code, _ in runs), tuple(count for _, count in runs))

    def _settle_one(self, operation: int, sequence: int, lease_number: int, detail: qc.SettleDetail) -> int:
        m = self.messages.get(sequence)
        if m is None:
            return Code.LEASE_UNKNOWN
        if m.state != LEASED or m.lease_number != lease_number:
            return Code.LEASE_LOST
        m.version += 1
        if operation == qc.Operation.ACCEPT:
            self._finish(m)
        elif operation == qc.Operation.REJECT:
            m.error = detail.error
            self._bury(m, 1)
        elif operation == qc.Operation.RENEW:
            m.deadline = self.now + min(detail.lease_ms, self.settings.lease_ms_max)
            m.leased_at = self.now
            m.progress = detail.progress or m.progress
        else:
            return self._release(m, detail)
        return Code.OK

    def _release(self, m: TwinMessage, detail: qc.SettleDetail) -> int:
        m.error = detail.error or m.error
        if detail.priority is not None:
            m.priority = detail.priority
        if detail.is_counted and (detail.delay_ms < 0 or 0 < self.settings.attempts_max <= m.attempts):
            return Code.DIED if self._end_attempt(m) else Code.OK
        if not detail.is_counted:
            m.attempts -= 1
        if detail.delay_ms >= 0:
            m.due = self.now + detail.delay_ms
        self._give_back(m)
        return Code.OK

    def _chain(self, chain: qc.Chain, fields: QueueFields, base: int) -> qr.Chained:
        if sum(chain.put_counts) != len(fields.body_lengths):
            return qr.Chained(qr.Refused(Code.INVALID), qr.Enqueued(0))
        is_known = self._known(chain.session, chain.request) is not None
        ones = (1,) * len(chain.sequences)
        settle = qc.Settle(chain.session, chain.request, ones, chain.sequences, ones, chain.lease_numbers)
        result, _ = self._request(settle, WORK_MAX)
        if not isinstance(result, qr.Settled):
            return qr.Chained(result if isinstance(result, qr.Refused) else qr.Refused(Code.INVALID), qr.Enqueued(0))
        if is_known:
            return qr.Chained(result, qr.Enqueued(0))
        codes = [code for code, count in zip(result.codes, result.counts, strict=True) for _ in range(count)]
        belongs = [code for code, count in zip(codes, chain.put_counts, strict=True) for _ in range(count)]
        omitted = frozenset(at for at, code in enumerate(belongs) if code != Code.OK)
        if len(omitted) == len(belongs):
            return qr.Chained(result, qr.Enqueued(0))
        return qr.Chained(result, self._enqueue(fields, base, omitted))

    # ------------------------------------------------------------------------------------------------- changes and jobs

    def _change(self, item: qc.ChangeItem) -> tuple[int, int]:
        sequence = item.sequence
        if item.id:
            known = self.ids.get(item.id)
            sequence = -1 if known is None or known.is_finished else known.sequence
        m = self.messages.get(sequence)
        if m is None:
            return Code.NO_SUCH_MESSAGE, 0
        if item.version not in (-1, m.version):
            return Code.VERSION_CONFLICT, m.version
        if m.state == LEASED:
            return Code.MESSAGE_LEASED, m.version
        is_cancel = item.operation == qc.ChangeOperation.CANCEL
        if not is_cancel and (m.state == DEAD) != (item.operation == qc.ChangeOperation.REDRIVE):
            return Code.WRONG_STATE, m.version
        m.version += 1
        if item.operation == qc.ChangeOperation.CANCEL:
            self._finish(m)
        elif item.operation == qc.ChangeOperation.REDRIVE:
            self._redrive(m)
        else:
            self._move(m, item)
        return Code.OK, m.version

    def _redrive(self, m: TwinMessage) -> None:
        m.dead_number = m.dead_at = m.dead_reason = m.attempts = 0
        m.due = m.deadline = self.now
        m.state = ""
        self._admit(m)

    def _move(self, m: TwinMessage, item: qc.ChangeItem) -> None:
        if m.state != READY:
            m.deadline = self.now
        if item.priority is not None:
            m.priority = item.priority
        if item.delay_ms >= 0 or item.due >= 0:
            m.due = self.now + item.delay_ms if item.delay_ms >= 0 else item.due
            if m.due > self.now:
                m.state = DELAYED
                self._let_go(m)
                return
        if m.state == DELAYED:
            self._admit(m)

    def _continue_job(self, number: int, wanted: int) -> qr.ItemResult:
        job = self.jobs.get(number)
        if job is None:
            return qr.Refused(Code.NO_SUCH_JOB)
        kind, chosen = job.command.kind, job.command.filter
        looked = taken = 0
        while looked < SLICE_ROWS_MAX and taken < wanted:
            if kind == qc.JobKind.PURGE:
                places = [m.sequence for m in self.messages.values()]
            else:
                places = [m.dead_number for m in self.messages.values() if m.state == DEAD]
            places = sorted(place for place in places if job.cursor <= place <= job.through)
            if not places:
                break
            m = next(
                m
                for m in self.messages.values()
                if (m.sequence if kind == qc.JobKind.PURGE else m.dead_number) == places[0]
            )
            if kind == qc.JobKind.RETAIN:
                if self.settings.has_dead_letter_topic and m.dead_number > self.copied_dead:
                    break
                dead = [one.body_bytes for one in self.messages.values() if one.state == DEAD]
                is_surplus = 0 < chosen.keep_count < len(dead) or 0 < chosen.keep_bytes < sum(dead)
                if m.dead_at >= chosen.before_ms and not is_surplus:
                    break
            job.cursor = places[0] + 1
            looked += 1
            if self._matches(kind, chosen, m):
                taken += 1
                if kind == qc.JobKind.REDRIVE:
                    m.version += 1
                    self._redrive(m)
                else:
                    self._finish(m)
        job.done += taken
        is_finished = looked < SLICE_ROWS_MAX and taken < wanted
        if is_finished:
            del self.jobs[number]
        return qr.JobProgress(job.done, is_finished)

    def _matches(self, kind: int, chosen: qc.JobFilter, m: TwinMessage) -> bool:
        if chosen.tenants and not any(
            not top or m.tenant == top or m.tenant.startswith(top + ".") for top in chosen.tenants
        ):
            return False
        if kind == qc.JobKind.PURGE:
            is_young = chosen.before_ms and m.enqueued_at >= chosen.before_ms
            return bool(chosen.states & 1 << STATE_NUMBERS[m.state]) and not is_young
        return kind == qc.JobKind.RETAIN or not chosen.before_ms or m.dead_at < chosen.before_ms

    # ------------------------------------------------------------------------------------------------------ schedules

    def _schedule(self, item: qc.PutSchedule | qc.ChangeSchedule | qc.DeleteSchedule) -> qr.ItemResult:
        version = self.next_version
        self.next_version += 1
        row = self.schedules.get(item.name)
        if row is None and not isinstance(item, qc.PutSchedule):
            return qr.Refused(Code.NO_SUCH_SCHEDULE)
        if isinstance(item, qc.PutSchedule):
            others = sum(len(one.definition) for name, one in self.schedules.items() if name != item.name)
            is_larger = row is None or len(item.definition) > len(row.definition)
            if is_larger and others + len(item.definition) > limits.SCHEDULES_BYTES_MAX:
                return qr.Refused(Code.TOO_MANY_SCHEDULES)
        if item.version not in (-1, 0 if row is None else row.version):
            return qr.Refused(Code.VERSION_CONFLICT)
        if isinstance(item, qc.DeleteSchedule):
            del self.schedules[item.name]
            assert row is not None
            return qr.ScheduleChanged(row.version)
        next_due = item.next_due
        if next_due == qc.KEEP_DUE:
            if row is None:
                return qr.Refused(Code.NO_SUCH_SCHEDULE)
            next_due = row.next_due
        if isinstance(item, qc.PutSchedule):
            before = row or TwinSchedule(b"", 0, 0, False)
            row = self.schedules[item.name] = replace(before)
            row.definition = item.definition
        assert row is not None
        row.next_due, row.is_paused, row.version = next_due, item.is_paused, version
        return qr.ScheduleChanged(version)

    def _skip(self, item: qc.SkipFirings) -> qr.ItemResult:
        row = self.schedules.get(item.name)
        if row is None:
            return qr.Refused(Code.NO_SUCH_SCHEDULE)
        if row.version != item.version or row.next_due != item.due:
            return qr.Refused(Code.VERSION_CONFLICT)
        row.next_due = item.next_due
        row.skipped_count += item.count
        return qr.ScheduleChanged(row.version)

    def _fire(self, read: ReadEntry) -> bool:
        firing = read.firing
        assert firing is not None
        row = self.schedules.get(firing.schedule.decode())
        if row is None or row.is_paused or row.version != firing.revision or row.next_due != firing.due_ms:
            return False
        row.last_due, row.next_due = firing.due_ms, firing.next_due_ms
        row.fired_count += 1
        return True


def as_fields(m: TwinMessage) -> dict[str, object]:
    """Return the fields that must be equal in the real machine."""
    fields = dict(vars(m))
    del fields["is_ordered"]
    return fields
