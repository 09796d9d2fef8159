"""The coordinator of consumer groups: on the metadata leader, keeps sessions, ends them, and has assignments computed.

Sessions live here and nowhere else: a heartbeat writes nothing. Only what changes a group goes through the metadata log. A
node that takes over gives every member a full session from then on. Decides nothing about a group itself: what a heartbeat
leads to is `heartbeat_validator`'s, what a command means the state machine's, who gets what an assignor's.

Invariant: every member of every group has a session while this node coordinates.

Source: KIP-848 (group coordinator).
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Final

import structlog
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Work, pause_after
from raftmq.broker.consumer_groups.assignor_process import PlanError, PlanRunner
from raftmq.broker.consumer_groups.planner import is_planned_for, plan_request
from raftmq.broker.consumer_groups.sessions import Sessions
from raftmq.broker.replica.replica import Replica
from raftmq.broker.services.host import ServiceHost
from raftmq.fsm.consumer_groups import ConsumerGroup, GroupMemberRow
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import (
    DeleteConsumerGroup,
    LeaveConsumerGroup,
    MetadataCommand,
    Rejected,
    encode_command,
)
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import EntryKind, Proposal
from raftmq.types import Term

log = structlog.get_logger(__name__)

MemberKey = tuple[str, str]
"""(group, member id)."""

EXPIRY_CHECK_SECONDS: Final = 60.0
"""How late an empty group may be forgotten."""
PLAN_RETRY_SECONDS: Final = 1.0
"""After an assignor failed, doubled each time up to the next bound."""
PLAN_RETRY_SECONDS_MAX: Final = 60.0

LEAVING_RETRY_MS: Final = 100

HEARTBEAT_SECONDS_MAX: Final = 5.0
HEARTBEAT_SECONDS_MIN: Final = 0.5
HEARTBEAT_SECONDS_PER_MEMBER: Final = 0.005
"""So 1,000 members come every 5 s, which is 200 heartbeats a second, and 100 or fewer twice a second."""
UNSETTLED_SECONDS_MIN: Final = 0.1
UNSETTLED_SECONDS_PER_MEMBER: Final = 0.001
"""While a group is not settled its members come sooner, to hear of it and to say what they gave up."""


class GroupCoordinator:
    """See the module. One per node; idle unless the node leads the metadata group."""

    def __init__(self, host: ServiceHost, runner: PlanRunner) -> None:
        self._host = host
        self._runner = runner
        self._term: Term | None = None
        """The term this node coordinates in; None: it does not."""
        self._sessions: Sessions[MemberKey] = Sessions()
        self._revocations: Sessions[MemberKey] = Sessions()
        """Members that were asked to give something up, and until when they may take."""
        self._leaving: set[MemberKey] = set()
        """Members whose session has ended, while that is on its way through the log."""
        self._seen_index = 0
        """Applied index at which groups were last looked through."""
        self._must_look = True
        """Whether a group may have changed since all were found planned."""
        self._topics: tuple[tuple[int, int], ...] = ()
        self._topics_version = 0
        """Counts changes of topics and of their numbers of partitions."""
        self._matched_version: dict[str, int] = {}
        """Of groups that subscribe by pattern: the version that was matched last."""
        self._ticked_at = host.loop.time()
        self._expiry_checked_at = host.loop.time()
        self._planning: asyncio.Task[None] | None = None
        self._plan_failures: dict[str, tuple[int, float]] = {}
        """Of groups whose assignor fails: how often, and when to try again."""
        self.expired_total = 0
        """Sessions that ended because nothing was heard."""
        self.plans_total = 0

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(self._host.timing.group_tick_seconds)
            try:
                await self.tick()
            except RequestError as error:  # leadership moved, or metadata is not ready: the next tick sees it as it is
                log.debug("coordination_postponed", reason=str(error))

    async def planned(self) -> None:
        """Wait until no assignment is being computed."""
        if self._planning is not None:
            await asyncio.wait((self._planning,))

    def close(self) -> None:
        """Stop what runs beside the loop."""
        if self._planning is not None:
            self._planning.cancel()
        self._runner.close()

    # ------------------------------------------------------------------------------------------------ sessions

    def heard_of(self, group: str, member_id: str, member: GroupMemberRow) -> None:
        """A heartbeat of a member was taken: its session begins anew.

        Raises:
            RequestError: THROTTLED, it comes too late: the member's end is being written. A member that were told it is one would be out
                a moment later without having been silent.
        """
        self._take_office()
        key = (group, member_id)
        if key in self._leaving:
            raise RequestError(
                pb.THROTTLED, "the member's session has ended, which is being written", retry_after_ms=LEAVING_RETRY_MS
            )
        now = self._host.loop.time()
        self._sessions.extend(key, now + member.session_timeout_ms / 1000)
        if not member.unreleased():
            self._revocations.forget(key)
        elif key not in self._revocations:
            self._revocations.extend(key, now + member.rebalance_timeout_ms / 1000)

    def forget(self, group: str, member_id: str) -> None:
        """A member left."""
        self._sessions.forget((group, member_id))
        self._revocations.forget((group, member_id))

    def session_left_seconds(self, group: str, member_id: str) -> float:
        """How long until the member is out, if nothing is heard; 0 when this node does not know."""
        deadline = self._sessions.deadline((group, member_id))
        return max(0.0, deadline - self._host.loop.time()) if deadline is not None else 0.0

    def next_heartbeat_seconds(self, group: ConsumerGroup, member: GroupMemberRow) -> float:
        """When a member shall come again: seldom in large clusters, soon while its group is not settled."""
        members = self._host.metadata.state_machine.member_count
        if group.is_settled:
            seconds = max(HEARTBEAT_SECONDS_MIN, members * HEARTBEAT_SECONDS_PER_MEMBER)
        else:
            seconds = max(UNSETTLED_SECONDS_MIN, members * UNSETTLED_SECONDS_PER_MEMBER)
        return min(seconds, HEARTBEAT_SECONDS_MAX, member.session_timeout_ms / 3000)

    # ------------------------------------------------------------------------------------------------ the tick

    async def tick(self) -> None:
        """One look: end sessions, forget empty groups, begin to plan."""
        now, tick_seconds = self._host.loop.time(), self._host.timing.group_tick_seconds
        elapsed, self._ticked_at = now - self._ticked_at, now
        if elapsed > tick_seconds + self._host.timing.stall_seconds:
            # the loop stood still and heartbeats wait to be read: that is nobody's silence
            self._sessions.shift(elapsed - tick_seconds)
            self._revocations.shift(elapsed - tick_seconds)
        if not self._take_office():
            return
        metadata = self._host.metadata
        if metadata.state_machine.applied_index != self._seen_index:
            self._seen_index = metadata.state_machine.applied_index
            self._must_look = True
            self._grant_sessions(metadata.state_machine)
        with self._step():
            await self._end_sessions(metadata, now)
        if now - self._expiry_checked_at >= EXPIRY_CHECK_SECONDS:
            self._expiry_checked_at = now
            with self._step():
                await self.expire_groups()
        with self._step():
            self._begin_to_plan(metadata.state_machine)

    def _step(self) -> AbstractContextManager[None]:
        return self._host.supervisor.step(Work.COORDINATOR)

    def _take_office(self) -> bool:
        """Whether this node coordinates; everyone gets a full session when it begins to."""
        metadata = self._host.metadata
        if not metadata.is_leader:
            if metadata.term != self._term:
                self._term = None
            return False
        if metadata.term != self._term:
            self._term = metadata.term
            self._sessions.clear()
            self._revocations.clear()
            self._plan_failures.clear()
            self._grant_sessions(metadata.state_machine)
        return True

    def _grant_sessions(self, machine: Metadata) -> None:
        """Everyone without a session gets one: all of them at the beginning, later those whose joining was cut short."""
        now = self._host.loop.time()
        for name in machine.consumer_group_names():
            group = machine.consumer_group(name)
            for member_id, member in group.members.items() if group is not None else ():
                if (name, member_id) not in self._sessions:
                    self._sessions.extend((name, member_id), now + member.session_timeout_ms / 1000)

    async def _end_sessions(self, metadata: Replica[Metadata], now: float) -> None:
        out: dict[str, list[str]] = {}
        for reason, sessions in (("session expired", self._sessions), ("revocation timed out", self._revocations)):
            for group, member_id in sessions.expired(now):
                known = metadata.state_machine.consumer_group(group)
                member = known.members.get(member_id) if known is not None else None
                if member is None or (sessions is self._revocations and not member.unreleased()):
                    continue
                log.info("group_member_expired", consumer_group=group, member_id=member_id, reason=reason)
                out.setdefault(group, []).append(member_id)
        left = dict(out)
        self._leaving.update((group, member_id) for group, member_ids in out.items() for member_id in member_ids)
        try:
            for group, member_ids in out.items():
                await self._execute(LeaveConsumerGroup(group, tuple(sorted(set(member_ids)))))
                self.expired_total += len(left.pop(group))
        except RequestError:
            # they are as expired as before; without a deadline nobody would look at them again
            for group, member_ids in left.items():
                for member_id in member_ids:
                    self._sessions.extend((group, member_id), now)
            raise
        finally:
            self._leaving.clear()

    async def expire_groups(self) -> None:
        """Forget groups whose last member left long ago, if this node knows the time."""
        if not self._host.is_clock_trusted:
            return
        machine = self._host.metadata.state_machine
        before_ms = self._host.now_ms() - int(self._host.timing.offsets_retention_seconds * 1000)
        for name in machine.consumer_group_names():
            group = machine.consumer_group(name)
            if group is not None and 0 < group.row.emptied_time_ms < before_ms and not group.members:
                log.info("consumer_group_expired", consumer_group=name)
                await self._execute(DeleteConsumerGroup(name, before_ms))

    async def _execute(self, command: MetadataCommand) -> object:
        """Propose and wait; what the state machine rejects has settled itself meanwhile."""
        _, applied = self._host.metadata.propose([Proposal(EntryKind.COMMAND, encode_command(command))])
        result = (await applied)[0]
        if isinstance(result, Rejected):
            log.debug("group_command_rejected", error_code=pb.ErrorCode.Name(result.code), reason=result.message)
        return result

    # ------------------------------------------------------------------------------------------------ plans

    def _begin_to_plan(self, machine: Metadata) -> None:
        if not self._must_look or (self._planning is not None and not self._planning.done()):
            return
        topics = tuple((topic.topic_id, len(topic.group_ids)) for topic in machine.topics())
        if topics != self._topics:
            self._topics = topics
            self._topics_version += 1
        names = self._unplanned(machine)
        if names:
            self._planning = self._host.loop.create_task(self._plan_all(names, self._topics_version))
        else:
            self._must_look = bool(self._plan_failures)

    def _unplanned(self, machine: Metadata) -> list[str]:
        """Groups whose target is not for what they are now; of those with patterns, all when topics changed."""
        now = self._host.loop.time()
        self._matched_version = {
            name: version for name, version in self._matched_version.items() if machine.consumer_group(name) is not None
        }
        # of a group that nobody is in any more, too: its failure would have every tick look through all groups for ever
        self._plan_failures = {
            name: failure
            for name, failure in self._plan_failures.items()
            if (failed := machine.consumer_group(name)) is not None and failed.members
        }
        found: list[str] = []
        for name in machine.consumer_group_names():
            group = machine.consumer_group(name)
            if group is None or not group.members or self._plan_failures.get(name, (0, 0.0))[1] > now:
                continue
            try:
                is_planned = is_planned_for(machine, group)
            except Exception as error:  # noqa: BLE001 -- a defect that one group's state shows keeps no other from its plan
                self._on_defect(name, error)
                continue
            if is_planned is None:
                is_planned = self._matched_version.get(name) == self._topics_version
            if not is_planned:
                found.append(name)
        return found

    async def _plan_all(self, names: list[str], topics_version: int) -> None:
        """Plan one group after the other; one that changes meanwhile is planned again by the next tick."""
        for name in names:
            try:
                if not self._take_office():
                    return
                await self._plan(name, topics_version)
            except RequestError as error:  # leadership moved, and its successor plans; or the next tick does
                log.debug("assignment_postponed", reason=str(error))
                return
            except Exception as error:  # noqa: BLE001 -- the task's root: nobody waits for it, and later groups have their turn
                self._on_defect(name, error)

    async def _plan(self, name: str, topics_version: int) -> None:
        machine = self._host.metadata.state_machine
        group = machine.consumer_group(name)
        if group is None or not group.members:
            self._plan_failures.pop(name, None)
            return
        request = plan_request(machine, group)
        try:
            found = await self._runner.run(request)
        except PlanError as error:
            self._plan_failed(name, request.assignor, str(error))
            return
        self.plans_total += 1
        self._plan_failures.pop(name, None)
        row = group.row
        if found.changes or row.epoch != row.target_epoch or row.topics != found.topics:
            result = await self._execute(found.command(request))
            if isinstance(result, Rejected):
                if result.code == pb.INVALID_ARGUMENT:
                    self._plan_failed(name, request.assignor, result.message)
                return
            log.info("group_assigned", consumer_group=name, members=len(request.members), changed=len(found.changes))
        self._matched_version[name] = topics_version

    def _on_defect(self, name: str, error: Exception) -> None:
        log.error("assignment_failed", consumer_group=name, exc_info=error)
        self._host.supervisor.record_failure(Work.COORDINATOR, error)
        self._plan_failed(name, "", "a defect of the broker")

    def _plan_failed(self, name: str, assignor: str, reason: str) -> None:
        count = self._plan_failures.get(name, (0, 0.0))[0] + 1
        pause = pause_after(count, PLAN_RETRY_SECONDS, PLAN_RETRY_SECONDS_MAX)
        self._plan_failures[name] = (count, self._host.loop.time() + pause)
        log.error("assignor_failed", consumer_group=name, assignor=assignor, reason=reason, attempt=count)
