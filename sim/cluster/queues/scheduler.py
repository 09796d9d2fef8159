"""An operator of the schedules of a queue partition, which are due while the run lasts."""

from __future__ import annotations

import asyncio
from functools import partial

from raftmq.fsm.queue.commands import NEVER, ChangeSchedule, SkipFirings
from raftmq.proto import queue_pb2 as pb
from raftmq.queue_batch import MessageColumns, encode, seal_queue_batch

from sim.cluster.queues import services
from sim.cluster.queues.producer import TENANTS
from sim.cluster.queues.requests import Attempt, Requests
from sim.history.queues.operations import Scheduled

NAMES = ("hourly", "nightly", "weekly")
EVERY_MS = 1_000
"""The shortest interval that the product accepts."""
_DUE_MS_MAX = 1_500
_OVERDUE_SECONDS = 0.2
"""The pause between two looks at schedules that are overdue."""


class Scheduler:
    """One operator of the schedules of one partition."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._ledger = requests.ledger
        self._group_id = requests.group_id

    async def meddle(self) -> None:
        """Do one thing with one schedule."""
        rng = self._ledger.rng
        actions = (self._put, self._put, self._put, self._change, self._set_due, self._skip, self._delete)
        await rng.choice(actions)(rng.choice(NAMES))

    async def _put(self, name: str) -> None:
        value, rng = self._ledger.new_value(), self._ledger.rng
        tenant = rng.choice(TENANTS[:3])
        columns = MessageColumns([value], tenants=[tenant.encode()] if tenant else None)
        request = pb.PutScheduleRequest(
            name=name, rule=self._new_rule(), message=seal_queue_batch(encode(columns), message_count=1)
        )
        await self._requests.send("PutSchedule", partial(services.put_schedule, request), partial(self._record, value))

    def _new_rule(self) -> pb.ScheduleRule:
        rng = self._ledger.rng
        catch_up = rng.choice((pb.SKIP_MISSED, pb.FIRE_ONCE, pb.FIRE_ALL))
        seen_ms = self._ledger.seen_ms.get(self._group_id, 0)
        draw = rng.random()
        if draw < 0.4 or not seen_ms:
            return pb.ScheduleRule(every_ms=EVERY_MS, catch_up=catch_up)
        if draw < 0.9:
            return pb.ScheduleRule(at_ms=seen_ms + rng.randrange(1, _DUE_MS_MAX), catch_up=catch_up)
        return pb.ScheduleRule(cron="* * * * *", catch_up=catch_up)

    def _record(self, value: bytes, attempt: Attempt) -> None:
        self._ledger.record(
            Scheduled(
                self._requests.process, self._group_id, attempt.began, attempt.ended, attempt.outcome, 0, value
            )
        )  # fmt: skip

    async def _change(self, name: str) -> None:
        """Pause or resume a schedule, or enqueue its message immediately."""
        verb = self._ledger.rng.choice(("pause", "resume", "resume", "run_now"))
        request = pb.ChangeScheduleRequest(name=name)
        setattr(request, verb, True)
        await self._requests.send("ChangeSchedule", partial(services.change_schedule, request))

    async def _set_due(self, _name: str) -> None:
        """Let a schedule that exists await another time, by the command itself. It may be in the past."""
        known = await self._schedules()
        seen_ms = self._ledger.seen_ms.get(self._group_id, 0)
        if known and seen_ms:
            name = self._ledger.rng.choice(list(known))
            due_ms = seen_ms + self._ledger.rng.randrange(-100, _DUE_MS_MAX)
            await self._requests.execute(ChangeSchedule(name, due_ms, is_paused=False, version=known[name].version))

    async def _skip(self, _name: str) -> None:
        """Pass over the next firing of a schedule, while the leader may be proposing it."""
        known = {name: one for name, one in (await self._schedules()).items() if one.next_due != NEVER}
        if known:
            name = self._ledger.rng.choice(list(known))
            following = known[name].next_due + self._ledger.rng.randrange(1, _DUE_MS_MAX)
            await self._requests.execute(SkipFirings(name, known[name].version, known[name].next_due, following, 1))

    async def _delete(self, name: str) -> None:
        request = pb.DeleteScheduleRequest(name=name)
        await self._requests.send("DeleteSchedule", partial(services.delete_schedule, request))

    async def _schedules(self) -> services.Schedules:
        answered = await self._requests.send("ListSchedules", services.schedules)
        found: services.Schedules = {} if answered is None else answered.result
        return found

    # ------------------------------------------------------------------------------------------------ the end

    async def end(self) -> None:
        """Wait until no schedule is overdue, and delete all of them."""
        while True:
            answered = await self._requests.send("ListSchedules", services.schedules)
            if answered is not None:
                found: services.Schedules = answered.result
                if not found:
                    return
                if not any(one.is_overdue for one in found.values()):
                    for name in found:
                        await self._delete(name)
                    continue
                self._ledger.overdue_seconds[self._group_id] += _OVERDUE_SECONDS
            await asyncio.sleep(_OVERDUE_SECONDS)
