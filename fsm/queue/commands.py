"""The commands of a queue partition: tagged msgspec structs, encoded as MessagePack.

One entry carries `Commands`: items that are executed in order, after everything that is due by the entry's time. Leases and settlements
are columns and runs of neighbouring sequences, never an object per message. New commands and fields have a feature level
(`feature_levels`), new fields are appended with defaults, and a tag is never reused.

Beside each command stands its check, which proposers call: `apply` refuses nothing for its form, and clamps numbers that a row cannot hold.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec
from raftmq.fsm.queue.limits import (
    DELAY_MS_MAX,
    ERROR_BYTES_MAX,
    FILTERS_MAX,
    HOUSEKEEPING_MAX,
    ID_BYTES_MAX,
    ITEMS_WORK_MAX,
    KEY_BYTES_MAX,
    NAME_BYTES_MAX,
    PROGRESS_BYTES_MAX,
    SCHEDULE_BYTES_MAX,
    TENANT_BYTES_MAX,
    TENANT_DEPTH_MAX,
)
from raftmq.fsm.queue.settings import QueueSettings, validate_settings

PRIORITY_MIN = -(1 << 31)
PRIORITY_MAX = (1 << 31) - 1
U32_MAX = (1 << 32) - 1
U64_MAX = (1 << 64) - 1
NUMBER_MAX = (1 << 63) - 1
"""Numbers that count up from 1 stay below it."""
ANY_VERSION = -1
FOREVER_MS = -1
LEASE_NUMBERS_AFTER_MAX = 1 << 31
"""Lease numbers have 32 bits in the protocol."""
NEVER = -1
"""The next due time of a schedule that does not fire again."""
KEEP_DUE = -2
"""The due time that the schedule has when the command is applied: a firing may have been proposed before it."""


class QueueCommand(msgspec.Struct, frozen=True, tag_field="t", omit_defaults=True, forbid_unknown_fields=True):
    """Base of all items."""


class Operation(IntEnum):
    """Name the effect of a settlement. Values are in entries: never reuse one."""

    ACCEPT = 1
    """The message is done."""
    RELEASE = 2
    """Give it back, now or later."""
    REJECT = 3
    """Give it up: it is dead."""
    RENEW = 4
    """Extend its lease."""


class Lease(QueueCommand, frozen=True, tag="lease"):
    """Lease up to `messages_max` messages. Result: `Leased`."""

    session: int
    """0: the request is not remembered, and a repeat leases more."""
    request: int
    messages_max: int
    lease_ms: int
    tenants: tuple[str, ...] = ()
    """Subtrees of tenants; empty: all."""
    key: bytes = b""
    """With exactly one tenant: only the head of this key."""
    bytes_max: int = 0
    """Bodies of all messages together, but at least one message is leased. 0: no bound."""


class SettleDetail(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Arguments of settlements, shared by all that have the same."""

    delay_ms: int = -1
    """Release: time until the message may be leased again. 0: it is due now, after those that are due already. -1: the topic's back-off, or,
    if the attempt does not count, the due time that the message had."""
    priority: int | None = None
    """Release: the new priority."""
    error: str = ""
    """Release, reject: the reason."""
    is_counted: bool = True
    """Release: whether the attempt counts. False for a message whose work was not begun."""
    lease_ms: int = 0
    """Renew: the rest of the lease from now on."""
    progress: str = ""
    """Renew: how far the work is."""


class Settle(QueueCommand, frozen=True, tag="settle"):
    """Settle leased messages, in runs of neighbouring sequences with equal lease numbers and arguments. Result: `Settled`.

    All columns have one item per run.
    """

    session: int
    """0: the request is not remembered."""
    request: int
    operations: tuple[int, ...]
    """Numbers of `Operation`."""
    first_sequences: tuple[int, ...]
    counts: tuple[int, ...]
    lease_numbers: tuple[int, ...]
    detail_numbers: tuple[int, ...] = ()
    """0: no arguments, else a place in `details`, from 1. Empty: no run has any."""
    details: tuple[SettleDetail, ...] = ()


class Chain(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Accept messages, each with messages that are enqueued in the same entry if its lease is valid. Result: `Chained`.

    It is no item of `Commands`: it travels in a DATA entry, in front of the batch (`enqueued`). Columns have one item per accepted message.
    """

    session: int
    """0: the request is not remembered. A repeat then finds no lease, and changes nothing."""
    request: int
    sequences: tuple[int, ...]
    lease_numbers: tuple[int, ...]
    put_counts: tuple[int, ...]
    """The messages of the batch that belong to each, in the order of the batch."""


class ChangeOperation(IntEnum):
    """Name the effect of a change. Values are in entries: never reuse one."""

    MOVE = 1
    """Set the due time or the priority of a waiting message."""
    CANCEL = 2
    """Remove a waiting or a dead message."""
    REDRIVE = 3
    """Make a dead message ready, without its attempts."""


class ChangeItem(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One change of one message."""

    operation: int
    sequence: int = 0
    """The message, if `id` is empty."""
    id: bytes = b""
    version: int = ANY_VERSION
    """Change it only in this version."""
    delay_ms: int = -1
    """Move: due so long after now. -1: see `due`."""
    due: int = -1
    """Move: the due time. -1: the due time stays."""
    priority: int | None = None


class Change(QueueCommand, frozen=True, tag="change"):
    """Change messages that nobody leases. Result: `Changed`."""

    items: tuple[ChangeItem, ...]


class JobKind(IntEnum):
    """Name the effect of a job on each message that it finds. Values are in rows: never reuse one."""

    PURGE = 1
    """Remove messages, by sequence."""
    REDRIVE = 2
    """Make dead messages ready, in the order of their deaths."""
    RETAIN = 3
    """Remove dead messages, the oldest first, except those to keep."""


class JobFilter(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Say which messages a job takes."""

    states: int = 0
    """Purge: a bit (1 << state) for each state. Leased messages lose their lease."""
    tenants: tuple[str, ...] = ()
    """Subtrees; empty: all."""
    before_ms: int = 0
    """Only messages that were enqueued, or with RETAIN and REDRIVE died, before this time. 0: all."""
    keep_count: int = 0
    """RETAIN: dead messages beyond this number go, too, however young. 0: no such bound."""
    keep_bytes: int = 0
    """RETAIN: the same for their bytes."""


class StartJob(QueueCommand, frozen=True, tag="job"):
    """Begin a job about the messages of this moment. Result: `JobStarted`, or `Refused`."""

    kind: int
    filter: JobFilter = JobFilter()
    messages_per_second: int = 0
    """The pace that the leader keeps. 0: as fast as it can."""


class ContinueJob(QueueCommand, frozen=True, tag="job+"):
    """Execute a slice of a job. Result: `JobProgress`, or `Refused`."""

    job: int
    messages_max: int


class CancelJob(QueueCommand, frozen=True, tag="job-"):
    """End a job. Result: `JobProgress`, or `Refused`."""

    job: int


class PurgeAll(QueueCommand, frozen=True, tag="purge"):
    """Remove all messages, and all ids with them. Result: `Purged`."""


class PutSchedule(QueueCommand, frozen=True, tag="sched"):
    """Create or replace a schedule. Result: `ScheduleChanged`, or `Refused`."""

    name: str
    definition: bytes
    """Rule and message: the machine keeps them for the leader, and does not read them."""
    next_due: int
    """The next firing, computed by the leader, or `KEEP_DUE` for a schedule that exists."""
    is_paused: bool = False
    version: int = ANY_VERSION


class ChangeSchedule(QueueCommand, frozen=True, tag="sched+"):
    """Pause or resume a schedule, or skip to another due time. Result: `ScheduleChanged`, or `Refused`."""

    name: str
    next_due: int
    """The next firing, or `KEEP_DUE`."""
    is_paused: bool
    version: int = ANY_VERSION


class SkipFirings(QueueCommand, frozen=True, tag="sched>"):
    """Pass over firings of a schedule that were missed. Its version stays. Result: `ScheduleChanged`, or `Refused`."""

    name: str
    version: int
    due: int
    """The first firing that is passed over, which the schedule must await."""
    next_due: int
    """The firing to await instead, later than `due`. -1: none."""
    count: int
    """The firings that are passed over."""


class DeleteSchedule(QueueCommand, frozen=True, tag="sched-"):
    """Delete a schedule. Result: `ScheduleChanged`, or `Refused`."""

    name: str
    version: int = ANY_VERSION


class OpenSession(QueueCommand, frozen=True, tag="open"):
    """Create a session, whose requests are remembered. Result: `SessionOpened`, or `Refused`."""


class CloseSession(QueueCommand, frozen=True, tag="close"):
    """Forget a session. Result: `Done`."""

    session: int


class Configure(QueueCommand, frozen=True, tag="conf"):
    """Take the topic's settings. Result: `Done`."""

    settings: QueueSettings


class PauseTenant(QueueCommand, frozen=True, tag="pause"):
    """Lease nothing of a subtree of tenants for a time. The empty tenant is the whole partition. Result: `Done`."""

    tenant: str
    pause_ms: int = FOREVER_MS


class ResumeTenant(QueueCommand, frozen=True, tag="resume"):
    """End the pause of exactly this tenant. Result: `Done`."""

    tenant: str


class AimCopies(QueueCommand, frozen=True, tag="aim"):
    """Copy the dead to this partition, under a new epoch that begins with the first one that is not copied. Result: `Done`.

    The leader sends it to choose the target, after the target forgot the producer, and after a gap: a message that was redriven or removed
    before it was copied. Only within an epoch the producer's sequences are dead numbers without gaps.
    """

    topic_id: int
    partition: int
    epoch: int
    """The present epoch + 1. Any other one changes nothing, so that an older leader's command has no effect."""


class CopyDead(QueueCommand, frozen=True, tag="copied"):
    """Record that the dead up to a number are in the dead letter topic, or do not exist any more. Result: `Done`."""

    through_number: int
    epoch: int = 0
    """The epoch under which they were copied. If it is not the present one, nothing changes."""


class Tick(QueueCommand, frozen=True, tag="tick"):
    """Carry the time, when something is due and nothing else does. Result: `Done`."""


Item = (
    Lease | Settle | Change | StartJob | ContinueJob | CancelJob | PurgeAll | PutSchedule | ChangeSchedule | SkipFirings
    | DeleteSchedule | OpenSession | CloseSession | Configure | PauseTenant | ResumeTenant | AimCopies | CopyDead | Tick
)  # fmt: skip


class Commands(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The payload of a COMMAND entry."""

    items: tuple[Item, ...]
    expire_before: int = 0
    """Leases with a deadline up to this time end. The leader keeps it behind now for a while after it was elected."""
    jitter_seed: int = 0
    """The leader's draw for the back-offs of this entry."""
    spared_through: int = 0
    """Only leases that were granted or last renewed up to this time are spared by `expire_before`. Later ones end at their deadline: their
    consumers know the leader."""
    due_max: int = 0
    """Messages whose leases end, that expire or that are promoted before the items, at most, so that a flood of due messages is no long stall.
    Half of them, rounded down, are for promotions alone. 0: `HOUSEKEEPING_MAX`, which no other number exceeds, and promotions get the rest."""
    lease_numbers_after: int = 0
    """Leases that the items grant have numbers above this one. After a recovery that lost entries, their lease numbers are not given again."""


_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_DECODER = msgspec.msgpack.Decoder(Commands)
SETTLE_BYTES = 160
"""Names of the fields, session and request of an encoded `Settle`, at most."""
SPARE_DETAILS_MAX = 16
"""Arguments of settlements beyond their runs: a client may send the same table each time, and the broker adds one for renewals."""
RUN_BYTES = 25
"""One run of it, at most: an operation in 1 byte, a sequence and a lease number in 9, and a count and a place, which are small, in 3."""
LEASE_BYTES = 128
"""An encoded `Lease` without a filter, at most."""


def clamped_priority(priority: int) -> int:
    """Return the nearest number that a row can hold."""
    return min(max(priority, PRIORITY_MIN), PRIORITY_MAX)


def encode_commands(commands: Commands) -> bytes:
    """Encode the payload of a COMMAND entry of a queue partition."""
    return _ENCODER.encode(commands)


def decode_commands(payload: bytes) -> Commands | None:
    """Decode the commands in a payload, or return None if this version cannot read them."""
    try:
        return _DECODER.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


# ------------------------------------------------------------------------------------------------------------ checks


def validate_commands(commands: Commands) -> str | None:
    """Return why the commands must not be proposed, or None."""
    work = 0
    for item in commands.items:
        reason = validate_item(item)
        if reason is not None:
            return reason
        work += work_of(item)
    if work > ITEMS_WORK_MAX:
        return f"the items of one entry name {work} messages, but at most {ITEMS_WORK_MAX} are allowed: use several entries"
    numbers = (commands.expire_before, commands.jitter_seed, commands.spared_through)
    if not all(0 <= number <= U64_MAX for number in numbers):
        return "expire_before, jitter_seed and spared_through must be unsigned 64-bit numbers"
    if not 0 <= commands.due_max <= HOUSEKEEPING_MAX:
        return f"due_max is between 0 and {HOUSEKEEPING_MAX}, and not {commands.due_max}"
    if not 0 <= commands.lease_numbers_after <= LEASE_NUMBERS_AFTER_MAX:
        return f"lease_numbers_after is between 0 and {LEASE_NUMBERS_AFTER_MAX}, and not {commands.lease_numbers_after}"
    return None


def work_of(item: Item) -> int:
    """Return how many messages an item may touch."""
    match item:
        case Lease() | ContinueJob():
            return item.messages_max
        case Settle():
            return sum(item.counts)
        case Change():
            return len(item.items)
        case _:
            return 1


def bytes_bound(item: Item) -> int:
    """Return a number of bytes that the encoded item does not exceed. The usual settlements and leases are not encoded for it."""
    match item:
        case Settle():
            runs = SETTLE_BYTES + RUN_BYTES * len(item.operations)
            return runs + len(_ENCODER.encode(item.details)) if item.details else runs
        case Lease() if not item.tenants:
            return LEASE_BYTES
        case _:
            return len(_ENCODER.encode(item))


def validate_item(item: Item) -> str | None:
    """Return why an item must not be proposed, or None."""
    match item:
        case Lease():
            return validate_lease(item)
        case Settle():
            return validate_settle(item)
        case Change():
            return validate_change(item)
        case StartJob():
            return validate_job(item)
        case ContinueJob():
            return None if item.messages_max >= 1 else "messages_max must be at least 1"
        case PutSchedule() | ChangeSchedule():
            return validate_schedule(item)
        case SkipFirings():
            return validate_skip(item)
        case DeleteSchedule():
            return validate_schedule_name(item.name)
        case Configure():
            return validate_settings(item.settings)
        case PauseTenant() | ResumeTenant():
            return validate_tenant(item.tenant)
        case AimCopies():
            return validate_aim(item)
        case CopyDead():
            return validate_copied(item)
        case _:
            return None


def validate_lease(lease: Lease) -> str | None:
    """Return why a lease must not be proposed, or None."""
    if lease.messages_max < 1 or not 1 <= lease.lease_ms <= U32_MAX:
        return "messages_max and lease_ms must be at least 1"
    if len(lease.tenants) > FILTERS_MAX:
        return f"a filter has at most {FILTERS_MAX} tenants, but this one has {len(lease.tenants)}"
    if lease.key and (len(lease.tenants) != 1 or len(lease.key) > KEY_BYTES_MAX):
        return f"a key needs exactly one tenant and has at most {KEY_BYTES_MAX} bytes"
    return next(filter(None, map(validate_tenant, lease.tenants)), None)


def validate_settle(settle: Settle) -> str | None:
    """Return why settlements must not be proposed, or None."""
    lengths = {
        len(column) for column in (settle.operations, settle.first_sequences, settle.counts, settle.lease_numbers)
    }
    if settle.detail_numbers:
        lengths.add(len(settle.detail_numbers))
    if len(lengths) != 1:
        return "the columns of the settlements have different lengths"
    if not all(operation in Operation._value2member_map_ for operation in settle.operations):
        return "an operation is unknown"
    if not all(count >= 1 for count in settle.counts) or not all(0 <= one < U64_MAX for one in settle.first_sequences):
        return "a run must have at least one message"
    if not all(0 <= number <= len(settle.details) for number in settle.detail_numbers):
        return "a run names arguments that are not there"
    if len(settle.details) > len(settle.operations) + SPARE_DETAILS_MAX:
        return f"{len(settle.operations)} runs have {len(settle.details)} arguments, which is more than they can name"
    return next(filter(None, map(validate_detail, settle.details)), None)


def validate_chain(chain: Chain, message_count: int) -> str | None:
    """Return why a chain with a batch of so many messages must not be proposed, or None. `apply` makes the same check."""
    accepted = len(chain.sequences)
    if len(chain.lease_numbers) != accepted or len(chain.put_counts) != accepted:
        return "the columns of the settlements have different lengths"
    if not all(0 <= one < U64_MAX for one in chain.sequences):
        return "a sequence is out of range"
    if any(count < 0 for count in chain.put_counts) or sum(chain.put_counts) != message_count:
        return f"the settlements name {sum(chain.put_counts)} messages to put, but the batch has {message_count}"
    if accepted + message_count > ITEMS_WORK_MAX:
        return (
            f"the settlements accept and put {accepted + message_count} messages, but at most {ITEMS_WORK_MAX} are allowed: "
            "use several requests"
        )
    return None


def validate_detail(detail: SettleDetail) -> str | None:
    """Return why arguments of a settlement must not be proposed, or None."""
    if len(detail.error.encode()) > ERROR_BYTES_MAX or len(detail.progress.encode()) > PROGRESS_BYTES_MAX:
        return f"an error has at most {ERROR_BYTES_MAX} bytes and a progress at most {PROGRESS_BYTES_MAX}"
    if not -1 <= detail.delay_ms <= DELAY_MS_MAX or not 0 <= detail.lease_ms <= U32_MAX:
        return f"a delay must be between 0 and {DELAY_MS_MAX} ms"
    return validate_priority(detail.priority)


def validate_change(change: Change) -> str | None:
    """Return why changes must not be proposed, or None."""
    for item in change.items:
        if item.operation not in ChangeOperation._value2member_map_:
            return f"the operation {item.operation} is unknown"
        if len(item.id) > ID_BYTES_MAX:
            return f"an id has at most {ID_BYTES_MAX} bytes"
        if not -1 <= item.delay_ms <= DELAY_MS_MAX or not -1 <= item.due < 1 << 63 or not 0 <= item.sequence < U64_MAX:
            return "a due time, a delay or a sequence is out of range"
        if not ANY_VERSION <= item.version <= U32_MAX:
            return f"a version is between 0 and {U32_MAX}, and not {item.version}"
        reason = validate_priority(item.priority)
        if reason is not None:
            return reason
    return None


def validate_job(job: StartJob) -> str | None:
    """Return why a job must not be proposed, or None."""
    if job.kind not in JobKind._value2member_map_:
        return f"the kind of job {job.kind} is unknown"
    if len(job.filter.tenants) > FILTERS_MAX:
        return f"a filter has at most {FILTERS_MAX} tenants, but this one has {len(job.filter.tenants)}"
    return next(filter(None, map(validate_tenant, job.filter.tenants)), None)


def validate_schedule(schedule: PutSchedule | ChangeSchedule) -> str | None:
    """Return why a schedule must not be proposed, or None."""
    reason = validate_schedule_name(schedule.name)
    if reason is not None:
        return reason
    if not KEEP_DUE <= schedule.next_due < 1 << 63:
        return "the next due time is out of range"
    if isinstance(schedule, PutSchedule) and len(schedule.definition) > SCHEDULE_BYTES_MAX:
        return f"a schedule has at most {SCHEDULE_BYTES_MAX} bytes with its message"
    return None


def validate_schedule_name(name: str) -> str | None:
    """Return why a text cannot be the name of a schedule, or None."""
    return None if 1 <= len(name.encode()) <= NAME_BYTES_MAX else f"a schedule's name has 1 to {NAME_BYTES_MAX} bytes"


def validate_skip(skip: SkipFirings) -> str | None:
    """Return why a skip must not be proposed, or None."""
    is_later = skip.next_due == NEVER or 0 <= skip.due < skip.next_due < 1 << 63
    return None if is_later and 0 < skip.count <= U32_MAX else "a skip must lead to a later firing"


def validate_aim(aim: AimCopies) -> str | None:
    """Return why a target of copies must not be proposed, or None."""
    if not 1 <= aim.topic_id <= NUMBER_MAX or not 0 <= aim.partition <= U32_MAX:
        return f"partition {aim.partition} of topic {aim.topic_id} cannot be the target of copies"
    return None if 1 <= aim.epoch <= NUMBER_MAX else f"the epoch of copies {aim.epoch} is out of range"


def validate_copied(copied: CopyDead) -> str | None:
    """Return why progress of copies must not be proposed, or None."""
    if not 1 <= copied.through_number <= NUMBER_MAX:
        return f"the dead number {copied.through_number} is out of range"
    return None if 1 <= copied.epoch <= NUMBER_MAX else f"the epoch of copies {copied.epoch} is out of range"


def validate_tenant(tenant: str) -> str | None:
    """Return why a text cannot be a tenant or a subtree, or None. The empty text is the root."""
    levels = tenant.split(".")
    if tenant and (len(levels) > TENANT_DEPTH_MAX or not all(levels) or len(tenant.encode()) > TENANT_BYTES_MAX):
        return f"{tenant[:60]!r} is no tenant: it has at most {TENANT_DEPTH_MAX} levels between single dots and {TENANT_BYTES_MAX} bytes"
    return None


def validate_priority(priority: int | None) -> str | None:
    """Return why a number cannot be a priority, or None."""
    if priority is not None and not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        return f"the priority {priority} is not a signed 32-bit number"
    return None
