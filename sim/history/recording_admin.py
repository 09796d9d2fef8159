"""`RecordingAdmin`: an admin client of the SDK that records changes and descriptions of topics. It must not change the client's behaviour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raftmq.client.admin.admin import Admin
from raftmq.client.admin.descriptions import TopicDescription
from raftmq.types import TopicPartition

from sim.history.recorder import Recorder
from sim.history.recording_client import RecordingClient


class RecordingAdmin(RecordingClient):
    """A recording `Admin`, see `RecordingClient`."""

    def __init__(self, admin: Admin, recorder: Recorder, process: str) -> None:
        super().__init__(admin, recorder, process)
        self.admin = admin

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str | int] | None = None,
    ) -> TopicDescription:
        """See `Admin.create_topic`."""
        texts = _texts(config)
        operation = self._recorder.invoke(self.process, "create_topic", topic=name, partitions=partitions, config=texts)
        try:
            created = await self.admin.create_topic(name, partitions, replication_factor, config)
        except BaseException as error:
            operation.end(error, topic=name)
            raise
        # The returned description may contain another client's change already, so the requested values are recorded.
        operation.ok(topic=name, partitions=partitions, config=texts)
        return created

    async def alter_topic_config(
        self,
        name: str,
        set: Mapping[str, str | int] | None = None,  # noqa: A002 - the SDK's name
        unset: Sequence[str] = (),
    ) -> None:
        """See `Admin.alter_topic_config`."""
        texts = _texts(set)
        operation = self._recorder.invoke(self.process, "alter_topic", topic=name, config=texts, unset=list(unset))
        try:
            await self.admin.alter_topic_config(name, set, unset)
        except BaseException as error:
            operation.end(error, topic=name)
            raise
        operation.ok(topic=name, config=texts, unset=list(unset))

    async def add_partitions(self, name: str, total: int) -> TopicDescription:
        """See `Admin.add_partitions`."""
        operation = self._recorder.invoke(self.process, "add_partitions", topic=name, partitions=total)
        try:
            changed = await self.admin.add_partitions(name, total)
        except BaseException as error:
            operation.end(error, topic=name)
            raise
        operation.ok(topic=name, partitions=total)
        return changed

    async def delete_topic(self, name: str) -> None:
        """See `Admin.delete_topic`."""
        operation = self._recorder.invoke(self.process, "delete_topic", topic=name)
        try:
            await self.admin.delete_topic(name)
        except BaseException as error:
            operation.end(error, topic=name)
            raise
        operation.ok(topic=name)

    async def describe_topic(self, name: str) -> TopicDescription:
        """See `Admin.describe_topic`."""
        operation = self._recorder.invoke(self.process, "describe_topic", topic=name)
        try:
            seen = await self.admin.describe_topic(name)
        except BaseException as error:
            operation.end_read(error, topic=name)
            raise
        operation.ok(
            topic=name, partitions=len(seen.partitions), config=seen.config, is_unconfirmed=seen.is_unconfirmed
        )
        return seen

    async def delete_records(self, before_offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """See `Admin.delete_records`. It records one `trim` for each partition. On an error the outcome of each is unknown."""
        operations = {
            target: self._recorder.invoke(
                self.process,
                "trim",
                topic=target.topic,
                partition=target.partition,
                offset=None if offset < 0 else offset,
            )
            for target, offset in before_offsets.items()
        }
        try:
            starts = await self.admin.delete_records(before_offsets)
        except BaseException as error:
            for target, operation in operations.items():
                operation.info(
                    topic=target.topic, partition=target.partition, error=type(error).__name__, detail=str(error)
                )
            raise
        for target, operation in operations.items():
            operation.ok(topic=target.topic, partition=target.partition, offset=starts[target])
        return starts


def _texts(config: Mapping[str, str | int] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (config or {}).items()}
