"""`EqualState`, `CountsHold`, `RowsNotAhead` for queue partitions: replicas with equal applied index have equal state, and counts equal a recount.

A queue keeps most rows on disk alone. In memory are the tables of tenants, sessions, schedules, jobs and producers, and all leased messages:
they are compared while the run goes on. The rows on disk are compared where two replicas have written back the same index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b

from raftmq.broker.partitions.queue.gate import QueueGate
from raftmq.broker.replica.disk import Installing
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.queue.message import LEASED, encode_message
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.state_machine import StateMachine
from raftmq.fsm.tables import encode_value

from sim.core.invariants.violation import demand


class QueueStates:
    """The digests of states, by group and index."""

    def __init__(self) -> None:
        self._in_memory: dict[tuple[int, int], tuple[bytes, int]] = {}
        self._on_disk: dict[tuple[int, int], tuple[bytes, int]] = {}
        self.compared = 0

    def on_memory(self, replica: Replica[StateMachine]) -> None:
        """Check and compare a replica's memory, unless an entry is half applied."""
        machine = replica.state_machine
        if not isinstance(machine, QueuePartition) or replica.is_closed or isinstance(replica.disk, Installing):
            return
        if not replica.applier.is_suspended:
            check_counts(replica.group_id, replica.replica_id, machine)
            self._compare(self._in_memory, "in memory", replica, machine.applied_index, _resident(machine))

    def on_disk(self, replica: Replica[StateMachine], state_index: int, rows: dict[bytes, bytes]) -> None:
        """Compare the rows of a state file, without bodies and without the rows of earlier generations."""
        parts = (part for row in sorted(rows.items()) for part in row)
        self._compare(self._on_disk, "on disk", replica, state_index, parts)

    def _compare(
        self,
        digests: dict[tuple[int, int], tuple[bytes, int]],
        where: str,
        replica: Replica[StateMachine],
        index: int,
        parts: Iterable[bytes],
    ) -> None:
        digest = blake2b(digest_size=16)
        for part in parts:
            digest.update(len(part).to_bytes(4, "big") + part)
        found = digest.digest()
        first, replica_id = digests.setdefault((replica.group_id, index), (found, replica.replica_id))
        self.compared += replica_id != replica.replica_id
        demand(
            first == found,
            "EqualState",
            f"r{replica_id} and r{replica.replica_id} of g{replica.group_id} differ {where} at index {index}",
        )


def _resident(machine: QueuePartition) -> Iterable[bytes]:
    state = machine.state
    state.scalars.ending_ids = state.ids.ending_count
    yield encode_value(state.scalars)
    yield encode_value(state.settings)
    for source in machine._sources:
        for key, value in source.rows():
            yield key
            yield value
    for sequence, message in sorted(state.store.messages.items()):
        if message.state == LEASED:
            yield sequence.to_bytes(8, "big") + encode_message(message)


def check_counts(group_id: int, replica_id: int, machine: QueuePartition) -> None:
    """Compare the counts in memory with each other, and those of leased messages with the messages."""
    state = machine.state
    tenants = list(state.tenants.living())
    leased = Counter(m.tenant for m in state.store.messages.values() if m.state == LEASED)
    where = f"r{replica_id} of g{group_id} at {machine.applied_index}"
    for tenant in tenants:
        counted = leased[tenant.number]
        demand(
            tenant.leased == counted, "CountsHold", f"{where}: {tenant.path!r} leases {tenant.leased}, not {counted}"
        )
    found = {
        "leased": (state.store.leased_count, leased.total()),
        "messages": (machine.message_count, sum(tenant.total for tenant in tenants)),
        "ready": (machine.ready_count, sum(tenant.ready for tenant in tenants)),
        "bytes": (machine.byte_count, sum(tenant.bytes for tenant in tenants)),
        "delayed": (state.scalars.delayed_count, sum(tenant.delayed for tenant in tenants)),
        "dead": (state.scalars.dead_count, sum(tenant.dead for tenant in tenants)),
    }
    for name, (count, recount) in found.items():
        demand(count == recount, "CountsHold", f"{where}: {count} {name}, not {recount}")


def check_gate(where: str, gate: QueueGate) -> None:
    """Check that the admission of batches counts no batch when all entries are applied."""
    demand(gate.immediate == 0, "CountsHold", f"{where}: {gate.immediate} messages are being committed")
    held = gate._proposed.messages + gate._admitted.messages
    demand(held == 0, "CountsHold", f"{where}: the gate counts {held} messages that are applied")


def check_rows_not_ahead(replica: Replica[StateMachine], state_index: int) -> None:
    """Check the state that was just written to the file of an open replica. The machine reads rows there for the entries that it applies."""
    applied = replica.state_machine.applied_index
    demand(
        replica.is_closed or state_index <= applied,
        "RowsNotAhead",
        f"the rows of r{replica.replica_id} of g{replica.group_id} are those at {state_index}, and it has applied only {applied}",
    )
