"""Bugs of the state machines."""

# ruff: noqa: ANN401, D103 -- a mutant takes whatever the product's method takes; its text is in the decorator

from __future__ import annotations

from typing import Any

from sim.node.mutants.registry import mutant


@mutant("machine", "applying reads something that is not in the log")
def applies_local_state() -> None:
    from raftmq.fsm.log_partition import LogPartition

    from sim.node.host import HOST

    apply_data = LogPartition._apply_data

    def local(self: Any, entry: Any) -> None:
        apply_data(self, entry)
        host = HOST.get()
        self.appended_bytes += 1 if host is not None and host.name == "n1" else 0

    LogPartition._apply_data = local  # type: ignore[method-assign]


@mutant("machine", "what duplicates are known by is forgotten when leadership changes")
def forgets_producers() -> None:
    from raftmq.fsm import append_judge

    judge = append_judge.AppendJudge.judge

    def forgetful(self: Any, header: Any) -> Any:
        verdict = judge(self, header)
        if isinstance(verdict, append_judge.Duplicate):
            return append_judge.Accept()
        return verdict

    append_judge.AppendJudge.judge = forgetful  # type: ignore[method-assign]


@mutant("machine", "a trim goes one record too far", trim_every=0.3)
def trims_too_far() -> None:
    from raftmq.fsm.log_commands import Trimmed
    from raftmq.fsm.log_partition import LogPartition

    def trim(self: Any, command: Any) -> Any:
        start = min(max(command.before_offset + 1, self.log_start_offset), self.next_offset)
        self.log_start_offset = start
        self._are_scalars_dirty = True
        return Trimmed(start)

    LogPartition._trim = trim  # type: ignore[method-assign]
