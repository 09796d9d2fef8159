"""Bugs of the state machines."""

# ruff: noqa: ANN401, D103 -- a mutant has the parameters of the product's method, and its text is in the decorator

from __future__ import annotations

from typing import Any

from sim.cluster.mutants.registry import mutant, replace_method


@mutant("machine", "applying an entry reads local state that is not in the log")
def applies_local_state() -> None:
    from raftmq.fsm.log_partition import LogPartition

    from sim.cluster.world.host import HOST

    apply_data = LogPartition._apply_data

    def local(self: Any, entry: Any) -> None:
        apply_data(self, entry)
        host = HOST.get()
        self.appended_bytes += 1 if host is not None and host.name == "n1" else 0

    LogPartition._apply_data = local  # type: ignore[method-assign]


@mutant("machine", "duplicate batches are accepted")
def forgets_producers() -> None:
    from raftmq.fsm import sequence_validator

    validate = sequence_validator.SequenceValidator.validate

    def forgetful(self: Any, header: Any) -> Any:
        result = validate(self, header)
        if isinstance(result, sequence_validator.Duplicate):
            return sequence_validator.Accept()
        return result

    sequence_validator.SequenceValidator.validate = forgetful  # type: ignore[method-assign]


@mutant("machine", "a trim deletes one record too many", trim_every=0.3)
def trims_too_far() -> None:
    from raftmq.fsm.log_commands import Trimmed
    from raftmq.fsm.log_partition import LogPartition

    def trim(self: Any, command: Any) -> Any:
        start = min(max(command.before_offset + 1, self.log_start_offset), self.next_offset)
        self.log_start_offset = start
        self._are_scalars_dirty = True
        return Trimmed(start)

    LogPartition._trim = trim  # type: ignore[method-assign]


@mutant(
    "machine",
    "an earlier owner of a partition may still commit there",
    members=4,
    freeze_client=16,
    fault_every=0.2,
    reset_share=0.0,
    drop_share=0.0,
    delay_mean=0.0005,
    slow_share=0.0,
    kill=0,
    kill_all=0,
    power_cut=0,
    stop=0,
    freeze=0,
    isolate=0,
    one_way=0,
    split=0,
    full_disk=0,
    stall_disk=0,
)
def owner_epoch_ignored() -> None:
    from raftmq.fsm.group_offsets import GroupOffset, GroupOffsets
    from raftmq.fsm.log_commands import Committed

    def commit(self: Any, command: Any, log_end_offset: int, now_ms: int) -> Any:
        known = self.table.get(command.group) or GroupOffset()
        self.table.put(
            command.group, GroupOffset(known.member, known.owner_epoch, command.offset, command.metadata, now_ms)
        )
        return Committed(command.offset)

    GroupOffsets.commit = commit  # type: ignore[method-assign]


@mutant("machine", "a member that opens a partition begins at its start, not at the committed offset", members=3)
def opened_from_the_beginning() -> None:
    import msgspec
    from raftmq.fsm.group_offsets import GroupOffsets
    from raftmq.fsm.log_commands import Opened

    opened = GroupOffsets.open

    def forgetful(self: Any, command: Any, now_ms: int) -> Any:
        result = opened(self, command, now_ms)
        return msgspec.structs.replace(result, offset=0) if isinstance(result, Opened) else result

    GroupOffsets.open = forgetful  # type: ignore[method-assign]


@mutant(
    "machine",
    "a removed node's replicas are not replaced",
    remove_node=8,
    replication_factor=3,
    machines=4,
    wipe=0,
    flip=0,
)
def removal_forgets_replicas() -> None:
    from raftmq.fsm import metadata_nodes

    replace_method(metadata_nodes, "retire_lost_replicas", lambda original: lambda *arguments, **named: None)


@mutant(
    "machine",
    "one entry with a future time ages everything by that time",
    sleep_all=8,
    fault_every=0.6,
    is_forgetful=False,
)
def expiry_leaps() -> None:
    from raftmq.fsm.expiry_clock import ExpiryClock

    def follow(self: Any, append_time_ms: int) -> int:
        if append_time_ms > self.append_time_ms:
            self.append_time_ms = self.now_ms = append_time_ms
            self._is_dirty = True
        return int(self.now_ms)

    ExpiryClock.advance = follow  # type: ignore[method-assign]


@mutant(
    "machine",
    "a command that a broker cannot read is applied as a refusal, by that broker alone",
    trim_every=0.3,
)
def unreadable_command_refused() -> None:
    from raftmq.fsm import codes, log_partition
    from raftmq.fsm.log_commands import TrimLog
    from raftmq.fsm.metadata_commands import Rejected
    from raftmq.fsm.state_machine import UnsupportedCommandError

    from sim.cluster.world.host import HOST

    machine: Any = log_partition
    decode, apply = machine.decode_command, machine.LogPartition.apply

    def older(payload: bytes) -> Any:
        command, host = decode(payload), HOST.get()
        return None if isinstance(command, TrimLog) and host is not None and host.name == "n2" else command

    def refusing(self: Any, entry: Any) -> Any:
        try:
            return apply(self, entry)
        except UnsupportedCommandError:
            self.applied_index = entry.index
            return Rejected(codes.INVALID_ARGUMENT, "the command cannot be read")

    machine.decode_command = older
    machine.LogPartition.apply = refusing
