"""Manage topics, consumer groups and the cluster from synchronous code: `Admin`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Literal, Self

from raftmq.client.admin.admin import Admin as AsyncAdmin
from raftmq.client.admin.configuration import ConfigValue, RuntimeSetting
from raftmq.client.admin.descriptions import BrokerRemoval, ClusterDescription, NewTopic, TopicDescription
from raftmq.client.admin.group_admin import GroupDescription, GroupListing, OffsetChange
from raftmq.client.admin.move_descriptions import (
    BalancingSettings,
    BrokerDrain,
    LeaderTransfer,
    MovesDescription,
    PartitionMove,
    RebalancePlan,
    ReplicationChange,
)
from raftmq.client.admin.producer_names import ForgottenNames
from raftmq.client.admin.recovery import LostPartitions, PartitionRecovery
from raftmq.client.admin.schedules import CatchUp, ScheduleDescription
from raftmq.client.connection.transport import Transport
from raftmq.sync.client import SyncClient
from raftmq.types import TopicPartition


class Admin(SyncClient):
    """`raftmq.Admin` for synchronous code. Any number of threads may share one. It connects when it is created."""

    _name = "admin"

    def __init__(
        self,
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9400",
        cluster_id: str = "",
        client_id: str = "raftmq",
        request_timeout_ms: float = 30_000,
        transport: Transport | None = None,
    ) -> None:
        super().__init__()
        self._client = self._make(
            lambda: AsyncAdmin(
                bootstrap_servers=bootstrap_servers,
                cluster_id=cluster_id,
                client_id=client_id,
                request_timeout_ms=request_timeout_ms,
                transport=transport,
            )
        )
        self._run(self._client.start)
        self._record_open(self._client.close)

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. See `raftmq.Admin.close`."""
        self._record_closed()
        self._run(self._client.close)

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, str | int] | None = None,
        *,
        kind: str = "log",
        if_not_exists: bool = False,
    ) -> TopicDescription:
        """Create a topic. See `raftmq.Admin.create_topic`."""
        return self._run(
            lambda: self._client.create_topic(
                name, partitions, replication_factor, config, kind=kind, if_not_exists=if_not_exists
            )
        )

    def create_topics(self, topics: Iterable[NewTopic], *, if_not_exists: bool = False) -> dict[str, TopicDescription]:
        """Create several topics. See `raftmq.Admin.create_topics`."""
        wanted = list(topics)
        return self._run(lambda: self._client.create_topics(wanted, if_not_exists=if_not_exists))

    def delete_topic(self, name: str) -> None:
        """Delete a topic. See `raftmq.Admin.delete_topic`."""
        self._run(lambda: self._client.delete_topic(name))

    def list_topics(self) -> list[TopicDescription]:
        """Return all topics. See `raftmq.Admin.list_topics`."""
        return self._run(self._client.list_topics)

    def describe_topic(self, name: str, *, ask_leaders: bool = False) -> TopicDescription:
        """Describe a topic. See `raftmq.Admin.describe_topic`."""
        return self._run(lambda: self._client.describe_topic(name, ask_leaders=ask_leaders))

    def alter_topic_config(
        self,
        name: str,
        set: Mapping[str, str | int] | None = None,  # noqa: A002 - reads as what it does
        unset: Sequence[str] = (),
    ) -> None:
        """Change a topic's configuration. See `raftmq.Admin.alter_topic_config`."""
        self._run(lambda: self._client.alter_topic_config(name, set, unset))

    def add_partitions(self, name: str, total: int, *, rehash: bool = False) -> TopicDescription:
        """Add partitions to a topic. See `raftmq.Admin.add_partitions`."""
        return self._run(lambda: self._client.add_partitions(name, total, rehash=rehash))

    def delete_records(self, before_offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete records below given offsets. See `raftmq.Admin.delete_records`."""
        return self._run(lambda: self._client.delete_records(before_offsets))

    def put_schedule(
        self,
        topic: str,
        name: str,
        value: bytes,
        *,
        cron: str | None = None,
        every: timedelta | None = None,
        at: datetime | None = None,
        timezone: str = "UTC",
        catch_up: CatchUp = "skip",
        key: str | bytes | None = None,
        tenant: str | None = None,
        priority: int = 0,
        expires_ms: float | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
        paused: bool | None = None,
        version: int | None = None,
    ) -> ScheduleDescription:
        """Create or replace a schedule. See `raftmq.Admin.put_schedule`."""
        return self._run(
            lambda: self._client.put_schedule(
                topic,
                name,
                value,
                cron=cron,
                every=every,
                at=at,
                timezone=timezone,
                catch_up=catch_up,
                key=key,
                tenant=tenant,
                priority=priority,
                expires_ms=expires_ms,
                headers=headers,
                paused=paused,
                version=version,
            )
        )

    def list_schedules(self, topic: str) -> list[ScheduleDescription]:
        """Return the schedules of a queue topic. See `raftmq.Admin.list_schedules`."""
        return self._run(lambda: self._client.list_schedules(topic))

    def pause_schedule(self, topic: str, name: str) -> None:
        """Pause a schedule. See `raftmq.Admin.pause_schedule`."""
        self._run(lambda: self._client.pause_schedule(topic, name))

    def resume_schedule(self, topic: str, name: str) -> None:
        """Resume a schedule. See `raftmq.Admin.resume_schedule`."""
        self._run(lambda: self._client.resume_schedule(topic, name))

    def run_schedule(self, topic: str, name: str) -> None:
        """Fire a schedule now. See `raftmq.Admin.run_schedule`."""
        self._run(lambda: self._client.run_schedule(topic, name))

    def delete_schedule(self, topic: str, name: str) -> None:
        """Delete a schedule. See `raftmq.Admin.delete_schedule`."""
        self._run(lambda: self._client.delete_schedule(topic, name))

    def list_groups(self) -> list[GroupListing]:
        """Return all consumer groups. See `raftmq.Admin.list_groups`."""
        return self._run(self._client.list_groups)

    def describe_group(self, group: str) -> GroupDescription:
        """Describe a consumer group. See `raftmq.Admin.describe_group`."""
        return self._run(lambda: self._client.describe_group(group))

    def reset_group_offsets(
        self,
        group: str,
        *,
        to: Literal["earliest", "latest"] | None = None,
        time_ms: int | None = None,
        shift: int | None = None,
        offsets: Mapping[TopicPartition, int] | None = None,
        topics: Iterable[str] = (),
        partitions: Iterable[TopicPartition] = (),
        dry_run: bool = False,
        fence_members: bool = False,
    ) -> list[OffsetChange]:
        """Reset a group's offsets. See `raftmq.Admin.reset_group_offsets`."""
        return self._run(
            lambda: self._client.reset_group_offsets(
                group,
                to=to,
                time_ms=time_ms,
                shift=shift,
                offsets=offsets,
                topics=topics,
                partitions=partitions,
                dry_run=dry_run,
                fence_members=fence_members,
            )
        )

    def delete_group(self, group: str) -> int:
        """Delete a consumer group. See `raftmq.Admin.delete_group`."""
        return self._run(lambda: self._client.delete_group(group))

    def remove_group_member(self, group: str, *, member_id: str = "", instance_id: str = "") -> None:
        """Remove a member from its group. See `raftmq.Admin.remove_group_member`."""
        self._run(lambda: self._client.remove_group_member(group, member_id=member_id, instance_id=instance_id))

    def describe_cluster(self, *, ask_brokers: bool = False) -> ClusterDescription:
        """Describe the cluster. See `raftmq.Admin.describe_cluster`."""
        return self._run(lambda: self._client.describe_cluster(ask_brokers=ask_brokers))

    def remove_broker(self, broker_id: int, *, force: bool = False) -> BrokerRemoval:
        """Remove a broker from the cluster. See `raftmq.Admin.remove_broker`."""
        return self._run(lambda: self._client.remove_broker(broker_id, force=force))

    def raise_feature_level(self, level: int | None = None) -> int:
        """Permit the features of newer brokers. See `raftmq.Admin.raise_feature_level`."""
        return self._run(lambda: self._client.raise_feature_level(level))

    def drain_broker(self, broker_id: int, *, dry_run: bool = False) -> BrokerDrain:
        """Begin to drain a broker. See `raftmq.Admin.drain_broker`."""
        return self._run(lambda: self._client.drain_broker(broker_id, dry_run=dry_run))

    def undrain_broker(self, broker_id: int) -> BrokerDrain:
        """End the draining of a broker. See `raftmq.Admin.undrain_broker`."""
        return self._run(lambda: self._client.undrain_broker(broker_id))

    def rebalance(self, *, dry_run: bool = False, leaders_only: bool = False) -> RebalancePlan:
        """Give the brokers equal shares. See `raftmq.Admin.rebalance`."""
        return self._run(lambda: self._client.rebalance(dry_run=dry_run, leaders_only=leaders_only))

    def move_partition(
        self, topic: str, partition: int, broker_ids: Sequence[int], *, dry_run: bool = False
    ) -> PartitionMove:
        """Move a partition to other brokers. See `raftmq.Admin.move_partition`."""
        return self._run(lambda: self._client.move_partition(topic, partition, broker_ids, dry_run=dry_run))

    def unpin_partition(self, topic: str, partition: int) -> bool:
        """Let automatic balancing move a partition again. See `raftmq.Admin.unpin_partition`."""
        return self._run(lambda: self._client.unpin_partition(topic, partition))

    def transfer_leader(self, topic: str, partition: int, broker_id: int | None = None) -> LeaderTransfer:
        """Transfer the leadership of a partition. See `raftmq.Admin.transfer_leader`."""
        return self._run(lambda: self._client.transfer_leader(topic, partition, broker_id))

    def list_lost_partitions(self, topic: str | None = None) -> LostPartitions:
        """List the partitions without a majority. See `raftmq.Admin.list_lost_partitions`."""
        return self._run(lambda: self._client.list_lost_partitions(topic))

    def recover_partition(
        self,
        topic: str,
        partition: int,
        keep_broker_id: int,
        *,
        unsafe: bool,
        dry_run: bool = False,
        group_id: int | None = None,
    ) -> PartitionRecovery:
        """Revive a partition without a majority from one replica. See `raftmq.Admin.recover_partition`."""
        return self._run(
            lambda: self._client.recover_partition(
                topic, partition, keep_broker_id, unsafe=unsafe, dry_run=dry_run, group_id=group_id
            )
        )

    def set_replication_factor(
        self, topic: str, replication_factor: int, *, dry_run: bool = False
    ) -> ReplicationChange:
        """Set the number of replicas of a topic's partitions. See `raftmq.Admin.set_replication_factor`."""
        return self._run(lambda: self._client.set_replication_factor(topic, replication_factor, dry_run=dry_run))

    def describe_moves(self) -> MovesDescription:
        """Describe the moves under way. See `raftmq.Admin.describe_moves`."""
        return self._run(self._client.describe_moves)

    def forget_producer_names(
        self, *, prefix: str = "", unused_seconds: float, dry_run: bool = False
    ) -> ForgottenNames:
        """Remove unused names of producers. See `raftmq.Admin.forget_producer_names`."""
        return self._run(
            lambda: self._client.forget_producer_names(prefix=prefix, unused_seconds=unused_seconds, dry_run=dry_run)
        )

    def set_balancing(
        self, auto_balance: bool | None = None, moves_max: int | None = None, bytes_per_second: int | None = None
    ) -> BalancingSettings:
        """Change how replicas are moved. See `raftmq.Admin.set_balancing`."""
        return self._run(lambda: self._client.set_balancing(auto_balance, moves_max, bytes_per_second))

    def alter_config(
        self,
        set: Mapping[str, str | int] | None = None,  # noqa: A002 - calls read well with it
        unset: Sequence[str] = (),
        *,
        broker_id: int | None = None,
    ) -> None:
        """Change settings of all brokers or of one while they run. See `raftmq.Admin.alter_config`."""
        self._run(lambda: self._client.alter_config(set, unset, broker_id=broker_id))

    def list_config(self) -> list[RuntimeSetting]:
        """Return the settings that can be changed while brokers run. See `raftmq.Admin.list_config`."""
        return self._run(self._client.list_config)

    def describe_config(self, broker_id: int) -> dict[str, ConfigValue]:
        """Return the settings in force on a broker, with their sources. See `raftmq.Admin.describe_config`."""
        return self._run(lambda: self._client.describe_config(broker_id))
