"""Decides for a `GroupMember` which call to make when and to which broker, and when the program counts as inactive.

Two threads use it. One makes the calls (`next_call`, `on_answer`, `on_error`, `take_news`; one call at a time). The event loop uses the
rest. Each method holds the lock briefly and never waits. Must not do I/O.

Invariant: a heartbeat's owned partitions were correct when it was built, at the epoch that it contains.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message
from raftmq.client.base import settings
from raftmq.client.base.error_details import fresh_copy, name_of
from raftmq.client.base.logs import log
from raftmq.client.membership.group_member import GroupMember, PartitionId, Standing, Steps, Subscription, check_failure
from raftmq.errors import FencedError, InternalError, Outcome, RaftMQError, TooManyMembersError, UnknownMemberError
from raftmq.methods import HEARTBEAT, LEAVE, UnaryMethod
from raftmq.proto import queue_pb2 as pb

FOREVER: Final = float("inf")


class GroupCall(NamedTuple):
    """A call to make now."""

    address: str
    method: UnaryMethod[Any, Any]  # of two calls, each with its own message types
    request: Message
    timeout_seconds: float
    sent_at: float


class MemberCalls:
    """Schedules the calls of one member. Times are the event loop's."""

    def __init__(
        self,
        member: GroupMember,
        *,
        heartbeat_seconds: float,
        poll_seconds_max: float,
        rng: random.Random,
        now: float,
    ) -> None:
        self._lock = threading.Lock()
        self._member = member
        self._heartbeat_seconds = heartbeat_seconds
        self._session_seconds = member.settings.session_timeout_ms / 1000
        self._poll_seconds_max = poll_seconds_max
        self._rng = rng
        self._next_at = now
        self._heard_at = now
        """When the last answered heartbeat was sent. The session lasts at least until one session timeout later."""
        self._addresses: tuple[str, ...] = ()
        self._coordinator = ""
        self._tries = 0
        self._failures = 0
        self._is_due_again = False
        """Whether a reason for another heartbeat came up while one was in flight."""
        self._has_news = False
        self._leaving: list[pb.LeaveRequest] = []
        """Requests to send before anything else."""
        self.asked = 0
        """Counts signs that the program is active. Written by the event loop only, without the lock."""
        self.asking = 0
        """The number of tasks that currently wait for records. Written like `asked`."""
        self._seen_asked = 0
        self._asked_at = now
        self.heartbeats_total = 0
        self.is_stopped = False

    # ------------------------------------------------------------------------------------------- the calling thread

    def next_call(self, now: float) -> GroupCall | float:
        """Return the call to make now, or the time until which to wait (`FOREVER`: until woken)."""
        with self._lock:
            if self.is_stopped:
                return FOREVER
            self._record_poll(now)
            member = self._member
            if member.may_leave:
                self._leave()
            if self._leaving:
                return self._call(LEAVE, self._leaving[0], now) if now >= self._next_at else self._next_at
            if member.standing in (Standing.OUT, Standing.FAILED):
                return FOREVER
            if member.standing is Standing.IN and now - self._heard_at >= self._session_seconds:
                self._on_silence()
            return self._call(HEARTBEAT, member.heartbeat(), now) if now >= self._next_at else self._wake_at(now)

    def on_answer(self, call: GroupCall, answer: Message, now: float) -> None:
        """Handle the answer of a call."""
        with self._lock:
            self._failures = 0
            if isinstance(call.request, pb.LeaveRequest):
                self._left(call.request)
            elif isinstance(answer, pb.HeartbeatResponse) and isinstance(call.request, pb.HeartbeatRequest):
                self.heartbeats_total += 1
                self._on_heartbeat(call.request, answer, call.sent_at, now)

    def _on_heartbeat(
        self, request: pb.HeartbeatRequest, answer: pb.HeartbeatResponse, sent_at: float, now: float
    ) -> None:
        before = (self._member.epoch, self._member.standing)
        self._has_news |= self.is_overdue(now)  # readers that wait because of that may continue
        if not self._member.on_answer(request, answer):
            self._coordinator = ""
            self._next_at = now + settings.GROUP_RETRY_SECONDS
            return
        self._coordinator = answer.coordinator.address
        self._heard_at = max(self._heard_at, sent_at)
        pause = max(min(self._heartbeat_seconds, answer.next_heartbeat_ms / 1000), settings.HEARTBEAT_SECONDS_MIN)
        # Randomized, so that a thousand members that joined together do not call together.
        self._next_at = now if self._is_due_again else now + pause * self._rng.uniform(0.9, 1.0)
        after = (self._member.epoch, self._member.standing)
        self._has_news |= after != before or not self._member.steps().is_empty

    def on_error(self, call: GroupCall, error: RaftMQError, now: float) -> None:
        """Handle a failed call."""
        with self._lock:
            self._coordinator = ""
            self._failures += 1
            pause = min(settings.GROUP_RETRY_SECONDS * self._failures, settings.RETRY_BACKOFF_MAX_SECONDS)
            self._next_at = now + max(pause * self._rng.uniform(0.5, 1.0), error.retry_after_ms / 1000)
            if isinstance(call.request, pb.LeaveRequest):
                if not error.retriable or self._failures >= settings.LEAVE_TRIES_MAX:
                    self._left(call.request)
            elif isinstance(call.request, pb.HeartbeatRequest):
                self._on_heartbeat_failed(call.request, error, now)

    def _on_heartbeat_failed(self, request: pb.HeartbeatRequest, error: RaftMQError, now: float) -> None:
        data = (request.group, request.member_id, name_of(error))
        if isinstance(error, UnknownMemberError):
            self._failures = 0
            self._member.on_unknown(request)
            self._next_at = self._heard_at = now
            self._has_news = True
            log.warning("group_membership_lost consumer_group=%s member_id=%s error_code=%s", *data)
        elif isinstance(error, FencedError | TooManyMembersError) or not (
            error.retriable or error.outcome is Outcome.UNKNOWN
        ):
            self._member.on_refused(request, error)
            self._has_news = True
            log.error("group_membership_refused consumer_group=%s member_id=%s error_code=%s", *data)
        elif self._failures == settings.FAILURES_BEFORE_WARNING:
            log.warning(
                "heartbeats_failing consumer_group=%s member_id=%s error_code=%s failures=%d", *data, self._failures
            )

    def on_crash(self, error: BaseException) -> None:
        """Record that a defect ended the calls. The membership has ended, and the program must be told."""
        with self._lock:
            self.is_stopped = True
            cause = InternalError(f"a defect of the SDK ended the heartbeats: {type(error).__name__}: {error}")
            self._member.on_refused(self._member.heartbeat(), cause)
            self._has_news = True

    def take_news(self) -> bool:
        """Return whether the event loop must look at `steps` and `check` again. Call it after each of the methods above."""
        with self._lock:
            has_news, self._has_news = self._has_news, False
            return has_news

    def _call(
        self, method: UnaryMethod[Any, Any], request: Message, now: float
    ) -> GroupCall | float:  # as `GroupCall.method`
        addresses = (self._coordinator,) if self._coordinator else self._addresses
        if not addresses:
            return now + settings.GROUP_RETRY_SECONDS
        address = addresses[self._tries % len(addresses)]
        self._tries += 1
        self._is_due_again = False
        timeout_seconds = min(max(self._session_seconds / 6, 1.0), settings.HEARTBEAT_ANSWER_SECONDS)
        return GroupCall(address, method, request, timeout_seconds, now)

    def _wake_at(self, now: float) -> float:
        """Return the time of the next thing to do, ignoring times in the past."""
        bounds = (self._next_at, self._asked_at + self._poll_seconds_max, self._heard_at + self._session_seconds)
        return min(bound for bound in bounds if bound > now)

    def _record_poll(self, now: float) -> None:
        """Update whether the program is active. A member whose program is inactive leaves, and joins again when it becomes active."""
        member = self._member
        if self.asking or self.asked != self._seen_asked:
            self._seen_asked, self._asked_at = self.asked, now
            if member.standing is Standing.OUT and member.subscription:
                member.join()
                self._next_at = self._heard_at = now
        elif now - self._asked_at >= self._poll_seconds_max and member.standing in (Standing.JOINING, Standing.IN):
            data = (member.settings.group, member.member_id, now - self._asked_at)
            log.warning("poll_interval_exceeded consumer_group=%s member_id=%s elapsed_seconds=%.1f", *data)
            self._leave()

    def _on_silence(self) -> None:
        before = self._member.steps()
        self._member.on_silence()
        if self._member.steps() != before:
            self._has_news = True
            data = (self._member.settings.group, self._member.member_id, self._session_seconds)
            log.warning("group_session_unheard consumer_group=%s member_id=%s elapsed_seconds=%.1f", *data)

    def _leave(self) -> None:
        """Leave, and queue a request to the coordinator. A static member sends none: its place is kept for its session (KIP-345)."""
        goodbye = self._goodbye()
        if goodbye is not None:
            self._leaving.append(goodbye)
        self._member.leave()
        self._has_news = True

    def _goodbye(self) -> pb.LeaveRequest | None:
        member = self._member
        if member.standing not in (Standing.JOINING, Standing.IN) or member.settings.instance_id:
            return None
        return pb.LeaveRequest(group=member.settings.group, member_id=member.member_id)

    def _left(self, request: pb.LeaveRequest) -> None:
        self._leaving = [waiting for waiting in self._leaving if waiting is not request]

    # ------------------------------------------------------------------------------------------------ the event loop

    def subscribe(self, subscription: Subscription, now: float) -> None:
        """Change the subscription. An empty one leaves the group. The caller wakes the other thread."""
        with self._lock:
            was_out = self._member.standing is Standing.OUT
            self._member.subscribe(subscription)
            self._next_at, self._is_due_again, self._has_news = now, True, True
            if was_out:
                self._heard_at = self._asked_at = now

    def stop(self) -> pb.LeaveRequest | None:
        """Stop sending. Return the final request, or None if it is not a member, or a static one."""
        with self._lock:
            self.is_stopped = True
            return self._goodbye()

    def join_again(self, partition: PartitionId, owner_epoch: int, since: float, now: float) -> bool | None:
        """Join again if a partition has refused the member since then and is still assigned under the same epoch.

        Returns:
            Whether it joins again. None: no heartbeat was answered since then. The caller wakes the other thread.
        """
        with self._lock:
            if not self._member.is_granted(partition, owner_epoch):
                return False
            if self._heard_at <= since:
                return None
            goodbye = self._goodbye()
            if goodbye is not None:
                self._leaving.append(goodbye)
            self._member.join_again()
            self._next_at = self._heard_at = now
            self._has_news = True
            return True

    def record_addresses(self, addresses: Iterable[str]) -> None:
        """Store the brokers' addresses, best first."""
        known = tuple(addresses)
        with self._lock:
            self._addresses = known or self._addresses

    def heartbeat_soon(self, now: float) -> None:
        """Request a heartbeat soon. The caller wakes the other thread."""
        with self._lock:
            self._is_due_again = True
            if not self._failures:
                self._next_at = min(self._next_at, now)

    def steps(self) -> Steps:
        """Return the steps as `GroupMember.steps` does."""
        with self._lock:
            return self._member.steps()

    def hold(self, opened: Mapping[PartitionId, int]) -> set[PartitionId]:
        """Record opened partitions as `GroupMember.hold` does."""
        with self._lock:
            return self._member.hold(opened)

    def release(self, partitions: Iterable[PartitionId]) -> None:
        """Record released partitions as `GroupMember.release` does."""
        with self._lock:
            self._member.release(partitions)

    def may_commit(self, partition: PartitionId, owner_epoch: int) -> bool:
        """Return whether a partition is held, as `GroupMember.may_commit` does."""
        with self._lock:
            return self._member.may_commit(partition, owner_epoch)

    @property
    def has_lost(self) -> bool:
        """Return whether any held partition is lost."""
        return bool(self._member.lost)

    def is_overdue(self, now: float) -> bool:
        """Return whether its session may have ended unnoticed, because the process was frozen or nobody answers."""
        return self._member.standing is Standing.IN and now - self._heard_at >= self._session_seconds

    @property
    def standing(self) -> Standing:
        """Return the standing of the member."""
        return self._member.standing

    @property
    def member_id(self) -> str:
        """Return the id of the current life."""
        return self._member.member_id

    @property
    def metadata_revision(self) -> int:
        """Return a metadata revision that includes the topics of the assignment."""
        return self._member.metadata_revision

    @property
    def is_rebalancing(self) -> bool:
        """Return whether a member of the group still lacks part of its target assignment, as of the last answer."""
        return self._member.is_rebalancing

    def check(self) -> None:
        """Raise the error with which the coordinator permanently refuses the member, if it did."""
        failure = check_failure(self._member)
        if failure is not None:
            raise fresh_copy(failure)
