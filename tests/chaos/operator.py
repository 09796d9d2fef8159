"""Play the operator of a run: give orders of `raftmq cluster`, `partition` and `topic`, and check in the end that each was carried out.

Faults strike while orders are under way, so an order may stay without an answer. The operator then repeats it in the end. An order is accepted
or refused in words. Everything else is a finding.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from raftmq.client.admin.descriptions import ClusterDescription, TopicDescription
from raftmq.errors import ConflictError, InternalError, NoLeaderError, NotReadyError, RaftMQError, UsageError
from raftmq.sync import Admin

from tests.chaos.cluster import ChaosCluster
from tests.chaos.condition import wait_until

ORDER_SECONDS = 10.0
"""The time during which an order is repeated until it is answered."""
REQUEST_MS = 2_500.0
PAUSE_SECONDS = 0.2
SETTLED_SECONDS = 180.0
"""The time after healing within which every order must be carried out."""
ACTIVE_MIN = 3
"""The least number of brokers that are not drained."""
PARTITIONS_MAX = 8
USUAL_FACTOR = 3


class OrderError(AssertionError):
    """Raised when an order was answered by an internal error."""


@dataclass(frozen=True)
class Answer:
    """The answer to an order."""

    outcome: Literal["accepted", "refused", "unanswered"]
    words: str = ""
    """The reason of a refusal, or the last error."""

    def __str__(self) -> str:
        return f"{self.outcome}: {self.words}" if self.words else self.outcome


class Operator:
    """Gives orders about one cluster and one of its topics. Used by one thread at a time."""

    def __init__(self, cluster: ChaosCluster, topic: str, stop: threading.Event) -> None:
        self.cluster = cluster
        self.topic = topic
        self._stop = stop
        self.drained: set[int] = set()
        """The brokers that must stay drained and empty."""
        self.factor = 0
        """The wished replication factor of the topic. 0: no order has changed it."""
        self.partitions = 0
        """The wished number of partitions. 0: no order has changed it."""
        self.has_ordered = False
        self.answers: Counter[str] = Counter()
        """Number of answers, by order and outcome."""

    # ----------------------------------------------------------------------------------------------------------- orders

    def give(self, name: str, order: Callable[[Admin], object], seconds: float = ORDER_SECONDS) -> Answer:
        """Give an order, and repeat it until it is answered or the time is over."""
        self.has_ordered = True
        deadline = time.monotonic() + seconds
        while True:
            answer = self._once(order)
            if answer.outcome != "unanswered" or time.monotonic() > deadline or self._stop.wait(PAUSE_SECONDS):
                break
        self.answers[f"{name} {answer.outcome}"] += 1
        return answer

    def _once(self, order: Callable[[Admin], object]) -> Answer:
        try:
            with self._admin() as admin:
                order(admin)
        except InternalError as error:
            raise OrderError(f"an order met an internal error: {error}") from error
        except (UsageError, ConflictError) as error:
            return Answer("refused", str(error))
        except (NotReadyError, NoLeaderError) as error:
            return Answer("unanswered", str(error))
        except RaftMQError as error:
            return Answer("unanswered", f"{type(error).__name__}: {error}")
        return Answer("accepted")

    def _admin(self) -> Admin:
        return Admin(bootstrap_servers=self.cluster.bootstrap_servers, request_timeout_ms=REQUEST_MS)

    def drain(self, broker_id: int) -> Answer:
        """Drain a broker, which must then stay empty."""
        self.drained.add(broker_id)
        answer = self.give("drain", lambda admin: admin.drain_broker(broker_id))
        if answer.outcome == "refused":
            self.drained.discard(broker_id)
        return answer

    def undrain(self, broker_id: int) -> Answer:
        """End the draining of a broker."""
        self.drained.discard(broker_id)
        return self.give("undrain", lambda admin: admin.undrain_broker(broker_id))

    def set_factor(self, factor: int) -> Answer:
        """Wish another replication factor of the topic."""
        before, self.factor = self.factor, factor
        answer = self.give("factor", lambda admin: admin.set_replication_factor(self.topic, factor))
        if answer.outcome == "refused":
            self.factor = before
        return answer

    def move(self, partition: int, broker_ids: Sequence[int]) -> Answer:
        """Move a partition of the topic."""
        return self.give("move", lambda admin: admin.move_partition(self.topic, partition, broker_ids))

    def transfer(self, partition: int, broker_id: int) -> Answer:
        """Transfer the leadership of a partition of the topic."""
        return self.give("transfer", lambda admin: admin.transfer_leader(self.topic, partition, broker_id))

    def add_partition(self) -> Answer:
        """Add a partition to the topic, up to a limit: above it the wished number is the present one, which must be refused."""
        present = self.partitions or self.partition_count()
        if not present:
            return Answer("unanswered", "nobody describes the topic")
        wished = min(present + 1, PARTITIONS_MAX)
        answer = self.give("partitions", lambda admin: admin.add_partitions(self.topic, wished))
        # a repetition of an order that was carried out without an answer is refused, too
        self.partitions = max(present, self.partition_count())
        return answer

    def partition_count(self) -> int:
        """Return the number of the topic's partitions, or 0 if nobody answers."""
        seen = self._describe_topic()
        return len(seen.partitions) if seen is not None else 0

    # -------------------------------------------------------------------------------------------------------------- end

    def _describe_topic(self) -> TopicDescription | None:
        try:
            with self._admin() as admin:
                return admin.describe_topic(self.topic)
        except RaftMQError:
            return None

    def what_is_not_settled(self) -> str:
        """Describe the orders that are not carried out yet, after repeating those that brokers do not know."""
        if not self.has_ordered:
            return ""
        try:
            with self._admin() as admin:
                cluster = admin.describe_cluster()
                topic = admin.describe_topic(self.topic)
                problems = self._repeat(admin, cluster, topic)
                moves = admin.describe_moves()
        except RaftMQError as error:
            return f"no answer: {type(error).__name__}: {error}"
        problems += _not_drained(cluster, self.drained)
        if self.partitions and len(topic.partitions) != self.partitions:
            problems.append(f"{len(topic.partitions)} partitions instead of {self.partitions}")
        factor = self.factor or topic.replication_factor
        if topic.replication_factor != factor:
            problems.append(f"the replication factor is {topic.replication_factor} instead of {factor}")
        problems += [
            f"partition {one.partition} has replicas on {one.replica_brokers}, not {factor}"
            for one in topic.partitions
            if len(set(one.replica_brokers)) != factor
        ]
        problems += [
            f"partition {move.partition} of {move.topic} moves to {move.to_broker_ids}" for move in moves.moves
        ]
        problems += [f"{moves.waiting_count} moves wait"] * bool(moves.waiting_count)
        problems += [f"{moves.without_place_count} replicas find no place"] * bool(moves.without_place_count)
        return "; ".join(problems)

    def _repeat(self, admin: Admin, cluster: ClusterDescription, topic: TopicDescription) -> list[str]:
        """Repeat the orders whose answers were lost and that were not carried out. Return the refusals."""
        for broker in cluster.brokers:
            if broker.broker_id in self.drained and broker.state == "active":
                try:
                    admin.drain_broker(broker.broker_id)
                except UsageError:  # refused, since another order took the place
                    self.drained.discard(broker.broker_id)
            elif broker.broker_id not in self.drained and broker.state == "draining":
                admin.undrain_broker(broker.broker_id)
        if self.factor and topic.replication_factor != self.factor:
            try:
                admin.set_replication_factor(self.topic, self.factor)
            except (UsageError, ConflictError) as error:
                return [f"replication factor {self.factor} is refused: {error}"]
        return []

    def settle(self) -> str:
        """Wait until every order is carried out. Return a description of those that are not in time."""
        problem = ""

        def is_settled() -> bool:
            nonlocal problem
            problem = self.what_is_not_settled()
            return not problem

        wait_until(is_settled, SETTLED_SECONDS, self._stop)
        return problem


def _not_drained(cluster: ClusterDescription, drained: set[int]) -> list[str]:
    """Describe the drained brokers that still hold something."""
    return [
        f"drained broker {broker.broker_id} is {broker.state} and has {broker.replica_count} replicas, "
        f"{broker.leader_count} leaderships and {'a' if broker.is_metadata_voter else 'no'} vote on metadata"
        for broker in cluster.brokers
        if broker.broker_id in drained
        and (broker.state != "draining" or broker.replica_count or broker.leader_count or broker.is_metadata_voter)
    ]
