"""Answer the calls of service `Queue` about schedules."""

from __future__ import annotations

from heapq import nsmallest
from typing import Final

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.broker.partitions.queue.schedule_plan import ScheduleDefinition, decode_definition, rule_of
from raftmq.broker.services.call import Call
from raftmq.broker.services.queue.partitions import QueuePartitions, reading
from raftmq.fsm.queue.schedules import ScheduleRow
from raftmq.proto import queue_pb2 as pb

PAGE_SCHEDULES_MAX: Final = 1_000


class QueueScheduleService:
    """Lists and changes the schedules of queue partitions."""

    def __init__(self, partitions: QueuePartitions) -> None:
        self._partitions = partitions

    async def put_schedule(self, request: pb.PutScheduleRequest, call: Call) -> pb.PutScheduleResponse:
        """Create or replace a schedule. See `QueueSchedules.put`."""
        deadline = call.within(request.timeout_ms, self._partitions.now)
        partition = await self._partitions.one(request.topic_id, request.partition, request.metadata_revision, deadline)
        state = await partition.schedules.put(request, deadline)
        return pb.PutScheduleResponse(version=state.version, next_due_ms=state.next_due_ms, is_paused=state.is_paused)

    async def change_schedule(self, request: pb.ChangeScheduleRequest, call: Call) -> pb.ChangeScheduleResponse:
        """Pause, resume or fire a schedule. See `QueueSchedules.change`."""
        deadline = call.within(request.timeout_ms, self._partitions.now)
        partition = await self._partitions.one(request.topic_id, request.partition, request.metadata_revision, deadline)
        state = await partition.schedules.change(request, deadline)
        return pb.ChangeScheduleResponse(version=state.version, next_due_ms=state.next_due_ms)

    async def delete_schedule(self, request: pb.DeleteScheduleRequest, call: Call) -> pb.DeleteScheduleResponse:
        """Delete a schedule. See `QueueSchedules.delete`."""
        deadline = call.within(request.timeout_ms, self._partitions.now)
        partition = await self._partitions.one(request.topic_id, request.partition, request.metadata_revision, deadline)
        await partition.schedules.delete(request, deadline)
        return pb.DeleteScheduleResponse()

    async def list_schedules(self, request: pb.ListSchedulesRequest, call: Call) -> pb.ListSchedulesResponse:
        """Return the schedules of each partition by name. It is refused only if every partition refuses."""
        limit = request.limit or PAGE_SCHEDULES_MAX
        if limit > PAGE_SCHEDULES_MAX:
            raise RequestError(pb.INVALID_ARGUMENT, f"a page has at most {PAGE_SCHEDULES_MAX} schedules, not {limit}")

        async def listed(partition: PartitionQueue) -> list[tuple[str, ScheduleRow]]:
            await reading(partition.replica.read_index(), call.deadline)
            table = partition.replica.state_machine.schedules.table
            if request.name:
                row = table.get(request.name)
                return [] if row is None else [(request.name, row)]
            names = (name for name in table.by_key if name > request.after_name)
            return [(name, table.by_key[name]) for name in nsmallest(limit, names)]

        outcomes = await self._partitions.each(
            "ListSchedules", request.topic_id, request.partitions, request.metadata_revision, call.deadline, listed
        )
        refusals = [outcome.error for outcome in outcomes if outcome.error is not None]
        if refusals and len(refusals) == len(outcomes):
            raise refusals[0]
        response = pb.ListSchedulesResponse()
        for outcome in outcomes:
            if outcome.error is not None:
                response.schedules.add(partition=outcome.partition, error=outcome.error.detail)
            for name, row in outcome.answer or ():
                response.schedules.append(_described(outcome.partition, name, row))
        return response


def _described(partition: int, name: str, row: ScheduleRow) -> pb.Schedule:
    definition = decode_definition(row.definition) or ScheduleDefinition()
    return pb.Schedule(
        partition=partition,
        name=name,
        rule=rule_of(definition),
        is_paused=row.is_paused,
        version=row.version,
        next_due_ms=row.next_due,
        last_fired_ms=max(row.last_due, 0),
        skipped=row.skipped_count,
    )
