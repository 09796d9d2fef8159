"""Coordinate consumer groups on the metadata leader: keep and end sessions, and have assignments computed.

Sessions exist only here: a heartbeat writes nothing. Only changes of a group go through the metadata log. A new coordinator
gives every member a full session. This module decides nothing about a group itself: `heartbeat_validator` decides the effect of
a heartbeat, the state machine that of a command, and an assignor the assignment.

Invariant: every member of every group has a session while this node coordinates.

Source: KIP-848 (group coordinator).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import structlog
from raftmq.assignors.builtin import BUILTIN_ASSIGNORS
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Work, pause_after
from raftmq.broker.consumer_groups.assignor_process import PlanError, PlanRunner
from raftmq.broker.consumer_groups.planner import PlanRequest, is_planned_for, plan_request, wanted_assignor
from raftmq.broker.consumer_groups.revocations import Revocations
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
"""The pause between two searches for expired groups."""
PLAN_RETRY_SECONDS: Final = 1.0
"""The pause after an assignor failed. It doubles with each failure, up to `PLAN_RETRY_SECONDS_MAX`."""
PLAN_RETRY_SECONDS_MAX: Final = 60.0

SLOW_PLAN_SECONDS: Final = 1.0
"""A plan that takes this long is slow: other groups come before its group's next one."""

LEAVING_RETRY_MS: Final = 100

COMMANDS_MAX: Final = 500
"""Commands about different groups that share a commit. With a commit for each group, a slow disk would prolong thousands of sessions."""

HEARTBEAT_SECONDS_MAX: Final = 5.0
HEARTBEAT_SECONDS_MIN: Final = 0.5
HEARTBEAT_SECONDS_PER_MEMBER: Final = 0.005
"""With it 1,000 members send a heartbeat every 5 s, 200 a second together, and 100 or fewer members each send two a second."""
UNSETTLED_SECONDS_MIN: Final = 0.1
UNSETTLED_SECONDS_PER_MEMBER: Final = 0.001
"""While a group is not settled its members send heartbeats sooner, to learn of it and to report the partitions they gave up."""


class GroupCoordinator:
    """Coordinates all consumer groups. Each node has one, which is idle unless the node leads the metadata group."""

    def __init__(self, host: ServiceHost, runner: PlanRunner) -> None:
        self._host = host
        self._runner = runner
        self._term: Term | None = None
        """The term in which this node coordinates, or None if it does not."""
        self._sessions: Sessions[MemberKey] = Sessions()
        self._revocations: Revocations[MemberKey] = Revocations()
        self._leaving: set[MemberKey] = set()
        """Members whose session has ended, while their removal is on its way through the log."""
        self._seen_index = 0
        """Applied index at which the groups were last checked."""
        self._must_look = True
        """Whether a group may have changed since all groups were found planned."""
        self._topics: tuple[tuple[int, int], ...] = ()
        self._topics_version = 0
        """Counts changes of topics and of their numbers of partitions."""
        self._matched_version: dict[str, int] = {}
        """The last matched version of each group that subscribes by pattern."""
        self._ticked_at = host.loop.time()
        self._expiry_checked_at = host.loop.time()
        self._writing: dict[str, asyncio.Task[None]] = {}
        """The work that waits for commits, by its name."""
        self._planning: asyncio.Task[None] | None = None
        self._plan_failures: dict[str, tuple[int, float]] = {}
        """Groups whose assignor fails, with the number of failures and the time of the next attempt."""
        self._slow_plans: dict[str, float] = {}
        """Groups whose last plan was slow, with the time of its end."""
        self.expired_total = 0
        """Sessions that ended without a heartbeat."""
        self.plans_total = 0

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(self._host.timing.group_tick_seconds)
            try:
                await self.tick()
            except RequestError as error:  # leadership moved, or metadata is not ready: the next tick checks again
                log.debug("coordination_postponed", reason=str(error))

    async def planned(self) -> None:
        """Wait until no assignment is being computed, and everything else that the last tick began is done."""
        for task in (*self._writing.values(), self._planning):
            if task is not None:
                await asyncio.wait((task,))

    def close(self) -> None:
        """Cancel the running plan and the writes, and end the runner."""
        for task in (*self._writing.values(), self._planning):
            if task is not None:
                task.cancel()
        self._runner.close()

    # ------------------------------------------------------------------------------------------------ sessions

    def heard_of(self, group: str, member_id: str, member: GroupMemberRow) -> None:
        """Start a member's session again after a heartbeat.

        Raises:
            RequestError: THROTTLED if the heartbeat is too late because the member's removal is being written. If this call
                accepted it, the member would be removed a moment later without having been silent.
        """
        self._take_office()
        key = (group, member_id)
        if key in self._leaving:
            raise RequestError(
                pb.THROTTLED,
                "the member's session has ended and its removal is being written; try again",
                retry_after_ms=LEAVING_RETRY_MS,
            )
        now = self._host.loop.time()
        self._sessions.extend(key, now + member.session_timeout_ms / 1000)
        self._revocations.record(key, member.unreleased(), now + member.rebalance_timeout_ms / 1000)

    def forget(self, group: str, member_id: str) -> None:
        """Forget the deadlines of a member that left."""
        self._sessions.forget((group, member_id))
        self._revocations.forget((group, member_id))

    def session_left_seconds(self, group: str, member_id: str) -> float:
        """Return the time until the member is removed unless a heartbeat arrives, or 0 if this node does not know it."""
        deadline = self._sessions.deadline((group, member_id))
        return max(0.0, deadline - self._host.loop.time()) if deadline is not None else 0.0

    def next_heartbeat_seconds(self, group: ConsumerGroup, member: GroupMemberRow) -> float:
        """Return the time until a member's next heartbeat: long in large clusters, short while its group is not settled."""
        members = self._host.metadata.state_machine.member_count
        if group.is_settled:
            seconds = max(HEARTBEAT_SECONDS_MIN, members * HEARTBEAT_SECONDS_PER_MEMBER)
        else:
            seconds = max(UNSETTLED_SECONDS_MIN, members * UNSETTLED_SECONDS_PER_MEMBER)
        return min(seconds, HEARTBEAT_SECONDS_MAX, member.session_timeout_ms / 3000)

    # ------------------------------------------------------------------------------------------------ the tick

    async def tick(self) -> None:
        """Begin to end sessions, to forget empty groups and to plan.

        It waits for no commit: the time since the last tick must show how long the event loop stalled, and nothing else.
        """
        now, tick_seconds = self._host.loop.time(), self._host.timing.group_tick_seconds
        elapsed, self._ticked_at = now - self._ticked_at, now
        if elapsed > tick_seconds + self._host.timing.stall_seconds:
            # the event loop stalled and heartbeats wait to be read, so the members were not silent
            self._sessions.shift(elapsed - tick_seconds)
            self._revocations.shift(elapsed - tick_seconds)
        if not self._take_office():
            return
        metadata = self._host.metadata
        if metadata.state_machine.applied_index != self._seen_index:
            self._seen_index = metadata.state_machine.applied_index
            self._must_look = True
            self._grant_sessions(metadata.state_machine)
        self._begin("end_sessions", lambda: self._end_sessions(metadata, now))
        if now - self._expiry_checked_at >= EXPIRY_CHECK_SECONDS:
            self._expiry_checked_at = now
            self._begin("expire_groups", self.expire_groups)
        with self._step():
            self._begin_to_plan(metadata.state_machine)

    def _step(self) -> AbstractContextManager[None]:
        return self._host.supervisor.step(Work.COORDINATOR)

    def _begin(self, name: str, write: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin work that waits for commits, unless it is still under way."""
        task = self._writing.get(name)
        if task is None or task.done():
            self._writing[name] = self._host.loop.create_task(self._write(write))

    async def _write(self, write: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with self._step():
            await write()

    def _take_office(self) -> bool:
        """Return whether this node coordinates. When it becomes coordinator every member gets a full session."""
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
        """Give a session to every member without one: all members at first, later those whose joining was interrupted."""
        now = self._host.loop.time()
        for name in machine.consumer_group_names():
            group = machine.consumer_group(name)
            for member_id, member in group.members.items() if group is not None else ():
                if (name, member_id) not in self._sessions:
                    self._sessions.extend((name, member_id), now + member.session_timeout_ms / 1000)

    async def _end_sessions(self, metadata: Replica[Metadata], now: float) -> None:
        if metadata.refusal_of_time() is not None:
            return  # an empty group expires by the time at which its last member left
        out: dict[str, list[str]] = {}
        expired = [(key, "session expired") for key in self._sessions.expired(now)]
        expired += [(key, "revocation timed out") for key in self._revocations.expired(now)]
        for (group, member_id), reason in expired:
            known = metadata.state_machine.consumer_group(group)
            member = known.members.get(member_id) if known is not None else None
            if member is None or (reason == "revocation timed out" and not member.unreleased()):
                continue
            log.info("group_member_expired", consumer_group=group, member_id=member_id, reason=reason)
            out.setdefault(group, []).append(member_id)
        left = dict(out)
        self._leaving.update((group, member_id) for group, member_ids in out.items() for member_id in member_ids)
        try:
            for groups in _batches(list(out)):
                await self._execute([LeaveConsumerGroup(group, tuple(sorted(set(out[group])))) for group in groups])
                self.expired_total += sum(len(left.pop(group)) for group in groups)
        except RequestError:
            # the members are still expired, but without a deadline they would never be checked again
            for group, member_ids in left.items():
                for member_id in member_ids:
                    self._sessions.extend((group, member_id), now)
            raise
        finally:
            self._leaving.clear()

    async def expire_groups(self) -> None:
        """Forget groups whose last member left long ago, if this node's clock is trusted."""
        if not self._host.is_clock_trusted:
            return
        machine = self._host.metadata.state_machine
        before_ms = self._host.now_ms() - int(self._host.timing.offsets_retention_seconds * 1000)
        expired: list[str] = []
        for name in machine.consumer_group_names():
            group = machine.consumer_group(name)
            if group is not None and 0 < group.row.emptied_time_ms < before_ms and not group.members:
                log.info("consumer_group_expired", consumer_group=name)
                expired.append(name)
        for names in _batches(expired):
            await self._execute([DeleteConsumerGroup(name, before_ms) for name in names])

    async def _execute(self, commands: Sequence[MetadataCommand]) -> list[object]:
        """Propose commands together and wait for their results. A rejected command has become unnecessary in the meantime."""
        proposals = [Proposal(EntryKind.COMMAND, encode_command(command)) for command in commands]
        _, applied = self._host.metadata.propose(proposals)
        results = await applied
        for result in results:
            if isinstance(result, Rejected):
                log.debug("group_command_rejected", error_code=pb.ErrorCode.Name(result.code), reason=result.message)
        return results

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
        """Return the groups whose target is outdated, and all groups with patterns if topics changed."""
        now = self._host.loop.time()
        self._matched_version = {
            name: version for name, version in self._matched_version.items() if machine.consumer_group(name) is not None
        }
        # also drop groups without members: their failures would make every tick check all groups without end
        self._plan_failures = {
            name: failure
            for name, failure in self._plan_failures.items()
            if (failed := machine.consumer_group(name)) is not None and failed.members
        }
        self._slow_plans = {
            name: ended_at for name, ended_at in self._slow_plans.items() if machine.consumer_group(name) is not None
        }
        found: list[str] = []
        for name in machine.consumer_group_names():
            group = machine.consumer_group(name)
            if group is None or not group.members or self._plan_failures.get(name, (0, 0.0))[1] > now:
                continue
            try:
                is_planned = is_planned_for(machine, group)
            except Exception as error:  # noqa: BLE001 -- a defect that one group's state triggers must not affect other groups' plans
                self._on_defect(name, error)
                continue
            if is_planned is None:
                is_planned = self._matched_version.get(name) == self._topics_version
            if not is_planned:
                found.append(name)
        return sorted(found, key=lambda name: self._plan_order(machine.consumer_group(name)))

    def _plan_order(self, group: ConsumerGroup | None) -> tuple[bool, float]:
        """Return a group's place among those to plan. Assignors that may hang come last, and those that were slow take turns."""
        if group is None:
            return False, 0.0
        return wanted_assignor(group) not in BUILTIN_ASSIGNORS, self._slow_plans.get(group.name, 0.0)

    async def _plan_all(self, names: list[str], topics_version: int) -> None:
        """Plan the groups one after another. A group that changes during this is planned again by the next tick.

        It ends early after a slow plan, because other groups may have changed in the meantime.
        """
        for name in names:
            slow_before = self._slow_plans.get(name)
            await asyncio.sleep(0)  # a small plan that changes nothing waits for nothing, and there may be thousands
            try:
                if not self._take_office():
                    return
                await self._plan(name, topics_version)
            except RequestError as error:  # leadership moved, and the successor plans, or the next tick does
                log.debug("assignment_postponed", reason=str(error))
                return
            except Exception as error:  # noqa: BLE001 -- the task's root: no caller awaits it, and later groups must be planned
                self._on_defect(name, error)
            if self._slow_plans.get(name) not in (None, slow_before):
                return

    async def _plan(self, name: str, topics_version: int) -> None:
        machine = self._host.metadata.state_machine
        group = machine.consumer_group(name)
        if group is None or not group.members:
            self._plan_failures.pop(name, None)
            return
        request = plan_request(machine, group)
        began_at = self._host.loop.time()
        try:
            found = await self._runner.run(request)
        except PlanError as error:
            self._plan_failed(name, request.assignor, str(error))
            return
        finally:
            ended_at = self._host.loop.time()
            self._slow_plans.pop(name, None)
            if ended_at - began_at >= SLOW_PLAN_SECONDS:
                self._slow_plans[name] = ended_at
        self.plans_total += 1
        self._plan_failures.pop(name, None)
        row = group.row
        if found.changes or row.epoch != row.target_epoch or row.topics != found.topics:
            (result,) = await self._execute([found.command(request)])
            if isinstance(result, Rejected):
                if result.code == pb.INVALID_ARGUMENT and not self._has_lost_members(request):
                    self._plan_failed(name, request.assignor, result.message)
                return
            log.info("group_assigned", consumer_group=name, members=len(request.members), changed=len(found.changes))
        self._matched_version[name] = topics_version

    def _has_lost_members(self, request: PlanRequest) -> bool:
        """Return whether a member that was planned for is gone.

        A static member that comes back under a new id leaves the group epoch as it is, because its partitions stay with it. So the plan is
        refused for its members and not for its epoch. The assignor is not to blame, and the next tick plans again.
        """
        group = self._host.metadata.state_machine.consumer_group(request.group)
        return group is None or any(member.member_id not in group.members for member in request.members)

    def _on_defect(self, name: str, error: Exception) -> None:
        log.error("assignment_failed", consumer_group=name, exc_info=error)
        self._host.supervisor.record_failure(Work.COORDINATOR, error)
        self._plan_failed(name, "", "a defect of the broker")

    def _plan_failed(self, name: str, assignor: str, reason: str) -> None:
        count = self._plan_failures.get(name, (0, 0.0))[0] + 1
        pause = pause_after(count, PLAN_RETRY_SECONDS, PLAN_RETRY_SECONDS_MAX)
        self._plan_failures[name] = (count, self._host.loop.time() + pause)
        log.error("assignor_failed", consumer_group=name, assignor=assignor, reason=reason, attempt=count)


def _batches(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[start : start + COMMANDS_MAX] for start in range(0, len(names), COMMANDS_MAX)]
