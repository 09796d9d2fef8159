"""The consuming half of a `Queue`: intakes that receive messages, settlements, and renewals of the leases that the program holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from raftmq.client.base import settings
from raftmq.client.base.error_details import name_of
from raftmq.client.base.logs import log
from raftmq.client.base.tracing import active_tracing
from raftmq.client.connection.resolver import Resolver
from raftmq.client.connection.transport import Transport
from raftmq.client.membership.heartbeat_runner import HeartbeatRunner, run_background_calls
from raftmq.client.queue.broker_link import BrokerLink
from raftmq.client.queue.intake import Intake, LeaseOptions
from raftmq.client.queue.lease import Lease, Verdict
from raftmq.client.queue.lease_renewals import LeaseRenewals
from raftmq.client.queue.new_message import CheckedMessage
from raftmq.client.queue.settlement_runs import Settlement
from raftmq.client.queue.settler import ChainSettings, Settler
from raftmq.client.queue.topic import QueuePartition, QueueTopic
from raftmq.proto import queue_pb2 as pb

READ_SECONDS: Final = 0.02
"""Time after which everything is read that has arrived while the event loop was blocked."""


class LeaseDesk:
    """Leases and settles messages of one topic. One event loop. It implements `MessageOffice` and `Links`."""

    def __init__(
        self,
        resolver: Resolver,
        transport: Transport,
        topic: QueueTopic,
        timeout_seconds: float,
        puts: ChainSettings,
        on_crash: Callable[[BaseException], None],
        check_caller: Callable[[], None],
    ) -> None:
        self._resolver = resolver
        self._transport = transport
        self._topic = topic
        self._on_crash = on_crash
        self._check_caller = check_caller
        self._tracing = active_tracing()
        self._loop = asyncio.get_running_loop()
        self._intakes: dict[LeaseOptions, Intake] = {}
        """The intake used last is the last one."""
        self._settler = Settler(resolver, self, timeout_seconds, puts, on_crash)
        self._renewals = LeaseRenewals()
        self._runner: HeartbeatRunner | None = None
        """The thread that renews leases, from the first message on."""
        self._blocked_since = 0.0
        self._read_until = 0.0
        """Until then messages are read that may have arrived since `_blocked_since`."""
        resolver.subscribe(self._on_topology)

    def intake(self, options: LeaseOptions) -> Intake:
        """Return the intake for these options. Intakes that nobody has used for long are closed."""
        found = self._intakes.pop(options, None)
        if found is None:
            found = Intake(self._topic.known, self._resolver, self, options, self._on_intake_crash)
            self._close_unused()
        self._intakes[options] = found
        return found

    def check_caller(self) -> None:
        """Implement `LeaseOffice.check_caller`."""
        self._check_caller()

    def settle(
        self,
        leases: Sequence[Lease],
        operation: pb.AckOperation,
        detail: pb.AckDetail | None,
        puts: tuple[CheckedMessage, ...] = (),
    ) -> asyncio.Future[list[Verdict]]:
        """Implement `LeaseOffice.settle`."""
        context = b"" if self._tracing is None else self._tracing.active_context()
        return self._settler.settle([Settlement(lease, operation, detail, puts, context) for lease in leases])

    def hold(self, leases: Sequence[Lease]) -> None:
        """Implement `LeaseOffice.hold`."""
        if self._runner is None:
            self._record_leaders()
            self._runner = run_background_calls(
                self._transport, self._renewals, self._on_lost, self._resolver.cluster_id, self._on_alive
            )
        self._renewals.hold(leases, self._loop.time())

    def drop(self, leases: Sequence[Lease]) -> None:
        """Implement `LeaseOffice.drop`."""
        self._renewals.drop(leases)

    def arrived_at(self) -> float:
        """Implement `MessageOffice.arrived_at`."""
        now = self._loop.time()
        return self._blocked_since if now < self._read_until else now

    def prepare(self, partition: QueuePartition) -> None:
        """Implement `MessageOffice.prepare`."""
        self._settler.prepare(partition)

    def link_for_settlements(self, address: str) -> BrokerLink:
        """Implement `Links.link_for_settlements`."""
        for intake in self._intakes.values():
            link = intake.link(address)
            if link is not None:
                return link
        return self.intake(LeaseOptions()).link_anyway(address)

    def links(self) -> list[BrokerLink]:
        """Implement `Links.links`."""
        return [link for intake in self._intakes.values() for link in intake.links()]

    def fail(self, error: BaseException) -> None:
        """Wake everybody who waits, after a defect."""
        for intake in self._intakes.values():
            intake.fail(error)

    async def close(self) -> None:
        """Give back messages that nobody took, wait for settlements, and stop. Messages in the program's hands keep their leases."""
        try:
            await asyncio.gather(*(intake.leave(settings.CLOSE_GRACE_SECONDS) for intake in self._intakes.values()))
            await self._settler.drain(settings.QUEUE_CLOSE_SECONDS)
        finally:
            await self._settler.close()
            for intake in self._intakes.values():
                intake.close()
            if self._runner is not None:
                await self._runner.close()

    # ------------------------------------------------------------------------------------------------------------ events

    def _on_topology(self) -> None:
        self._record_leaders()
        is_deleted = self._topic.known() is None
        for intake in self._intakes.values():
            intake.update()
            if is_deleted:
                intake.end_waits()
        if self._resolver.failure is not None:
            self.fail(self._resolver.failure)

    def _record_leaders(self) -> None:
        info = self._topic.known()
        addresses: dict[int, str] = {}
        present = info.group_ids if info is not None else ()
        for group_id in {*present, *self._renewals.held_groups()}:
            leader = self._resolver.leader(group_id)
            if leader is not None:
                addresses[group_id] = self._resolver.address(leader)
        self._renewals.record_leaders(addresses)

    def _on_intake_crash(self, intake: Intake, error: BaseException) -> None:
        """Give up one intake after a defect. Those with other options go on, and the next call creates another with these."""
        log.error("receiving_stopped error_code=%s", name_of(error))
        for options, found in list(self._intakes.items()):
            if found is intake:
                del self._intakes[options]
        intake.abandon(error)

    def _on_alive(self, asked_at: float) -> None:
        now = self._loop.time()
        if now - asked_at >= settings.LEASE_TICK_SECONDS:
            self._blocked_since, self._read_until = asked_at, now + READ_SECONDS

    def _on_lost(self) -> None:
        for lease in self._renewals.take_lost():
            log.warning("lease_lost partition=%d sequence=%d", lease.partition.partition, lease.sequence)
            self._loop.call_soon(
                lease.tell_lost
            )  # on its own: one that raises must not keep the others from being told

    def _close_unused(self) -> None:
        while len(self._intakes) >= settings.QUEUE_INTAKES_MAX:
            unused = next((options for options, intake in self._intakes.items() if intake.is_idle), None)
            if unused is None:
                return
            self._intakes.pop(unused).close()
