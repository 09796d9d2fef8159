"""`Worker`: the public class. It checks its arguments, builds the parts and runs them until it is stopped.

Must not process records (the work loop does). A worker runs once.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Generic, get_args

from raftmq.client.admin.admin import Admin
from raftmq.client.admin.descriptions import TopicDescription
from raftmq.client.base import settings
from raftmq.client.base.arguments import LONG_MAX, check_at_least, check_not_negative, check_positive, check_whole
from raftmq.client.base.background import done_before
from raftmq.client.base.fork_guard import check_not_forked, current_generation
from raftmq.client.base.metrics import WorkerMetrics
from raftmq.client.base.stop_requests import StopRequests, signals_taken
from raftmq.client.base.texts import check_text
from raftmq.client.connection.transport import Transport
from raftmq.client.consumer.consumer_settings import OffsetReset
from raftmq.client.consumer.group_arguments import GroupArguments, check_group_arguments
from raftmq.client.consumer.rebalance_listener import RebalanceListener
from raftmq.client.producer.producer import Producer
from raftmq.client.queue.new_message import check_lease
from raftmq.client.worker.back_pressure import WorkLimits
from raftmq.client.worker.dead_letters import DeadLetters
from raftmq.client.worker.executor import Executor, ExecutorName, Hook, place_of
from raftmq.client.worker.failure_reports import OnFailure
from raftmq.client.worker.group_consumer import GroupConsumer
from raftmq.client.worker.handlers import Handler, Handlers
from raftmq.client.worker.hooks import Hooks
from raftmq.client.worker.loop_executor import LoopExecutor
from raftmq.client.worker.loop_thread_executor import LoopThreadExecutor
from raftmq.client.worker.outcome import RetryPolicy, name_of_class
from raftmq.client.worker.process_executor import ProcessExecutor
from raftmq.client.worker.queue_arguments import check_log_arguments, check_queue_arguments
from raftmq.client.worker.queue_work_loop import QueueWorkLoop, WorkQueue
from raftmq.client.worker.schedule import Ordering
from raftmq.client.worker.thread_executor import ThreadExecutor
from raftmq.client.worker.work_consumer import WorkConsumer
from raftmq.client.worker.work_loop import WorkLoop
from raftmq.errors import ClosedClientError, InvalidArgumentError, TopicKindMismatchError, UnknownTopicError
from raftmq.types import KeyT_co, ValueT_co

ErrorTypes = type[BaseException] | tuple[type[BaseException], ...]
"""One exception class, or several."""


class Worker(Generic[KeyT_co, ValueT_co]):
    """Runs a handler over the records of a topic, sharing them with the other workers of its group, or over the messages of a queue topic.

    ::

        def handle(record):
            send_invoice(json.loads(record.value))

        Worker("orders", "invoices", handle, dead_letter_topic="orders.dead").run()

    Each record is processed at least once: the group's progress passes a record only when its handler has succeeded or the record has been
    moved to the dead-letter topic. After a crash, records that were in work and records that were finished since the last commit are
    processed again, so handlers must be idempotent. A stop, or the move of a partition to another worker, repeats only records that were not
    finished.

    With ``ordering="key"`` the records of a key are processed in the order in which they were written, one at a time, while other keys are
    processed concurrently. That holds across workers and crashes: repeated records are repeated in order.

    Without a `group_id` it works on a queue topic, which has no groups: ``Worker("jobs", handler=handle).run()``. The handler gets a
    `QueueRecord`, and an `Attempt` with the number of the message's lease. A message is done when the handler returns, ``Retry(after=…)`` gives
    it back for that time, ``Reject`` makes it dead, and another exception gives it back for the topic's back-off. The topic, not the worker,
    limits the attempts and keeps dead messages, so arguments about order, retries, dead letters, offsets and groups are refused. Leases are renewed while a handler runs. If one is lost nevertheless, an async handler is
    cancelled.

    Args:
        topic: the topic or topics to process. Without a group it is one queue topic.
        group_id: the consumer group that shares the work. None: the topic is a queue.
        handler: a function of a `Record` and, if it has a second parameter, the `Attempt`; or a mapping from each topic to its handler. An
            async function runs on an event loop, a plain one in threads (or processes). An attempt succeeds when the handler returns, and
            fails when it raises. ``raise Retry(after=60)`` postpones the record, ``raise Reject("why")`` gives it up immediately.
        concurrency: maximum number of handlers that run concurrently in this worker.
        ordering: ``"key"``: process records with the same key one at a time (records without a key have no order). ``"partition"``:
            process all records of a partition one at a time. ``"none"``: no order.
        executor: ``"thread"`` (the default) or ``"process"`` for plain functions. Processes use all cores and can be stopped, but the
            handler must be a function at the top level of a module.
        retries: maximum number of retries of a record. None: no limit. Until its next attempt a record blocks its key, its partition or
            nothing, depending on `ordering`.
        retry_backoff_ms: upper bound of the first wait before a retry. It doubles with each attempt. Each wait is between half and all of
            its bound.
        retry_backoff_max_ms: limit at which the bound stops doubling.
        retry_on: exception classes that are retried. Records that fail with another one are given up immediately. None: all are retried.
        give_up_on: exception classes that are never retried, even if `retry_on` contains them.
        dead_letter_topic: topic for the records that failed for the last time, with headers for their origin, the number of attempts and
            the error (`raftmq.dead_letter.…`). Without one, such a record stops the worker (`PoisonRecordError`).
        create_dead_letter_topic: create the dead-letter topic if it does not exist, with as many partitions as the (first) topic, for
            records as large as those of the topics. Otherwise it must exist.
        handler_timeout_ms: time limit of an attempt. When it is exceeded, the attempt has failed: an async handler is cancelled, and a
            process is killed and replaced. A thread cannot be stopped, so the record stays blocked until its handler returns.
        key_deserializer: converts the bytes of a key for the handler. A key of None stays None. A record whose key it fails on is given up
            immediately. Ordering uses the bytes. Type checkers infer the type of the handler's record from it.
        value_deserializer: converts the bytes of a value for the handler, in the same way.
        on_startup: function that is called once before the first record, on the event loop of async handlers (else on the worker's). It
            may be async. Its exception ends the worker.
        on_shutdown: function that is called once at the end, when no handler runs and the worker has left the group. An async function may
            take up to 10 s.
        on_failure: function of a `HandlerFailure` that is called after each failed attempt, on the worker's event loop, so it must return
            quickly. It is not called for ``Retry``, except on the last attempt.
        drain_timeout_ms: time for running handlers to end when the worker is stopped. In its first half, records below the highest
            finished one are still started. The default is below the 30 s after which Kubernetes kills a process.
        revocation_timeout_ms: time for running handlers to end when their partitions move to another worker, which waits for them.
        commit_interval_ms: time between commits of progress. After a crash, records finished since the last commit are processed again.
        max_records: maximum number of records in work over all partitions: taken, and not yet below the committable progress.
        max_partition_records: maximum number of records in work of each partition. A record that is slow, or waits for its next attempt,
            blocks its partition when this many records after it have been taken.
        auto_offset_reset: the position at which the group begins in a partition without committed progress.
        lease_ms: only on a queue topic: the length of leases, from 1 s to 12 h, which are renewed. None: the topic's. After a crash other workers get the
            messages when it has passed.
        prefetch: only on a queue topic: messages to hold ready beside those in handlers. They wait for this worker while others are idle, so
            more than a few only help handlers of a few milliseconds.
        bootstrap_servers: as for `Consumer`.
        client_id: as for `Consumer`.
        group_instance_id: as for `Consumer`.
        session_timeout_ms: as for `Consumer`.
        max_poll_interval_ms: as for `Consumer`.
        assignor: as for `Consumer`.
        rack: as for `Consumer`.
        request_timeout_ms: as for `Consumer`.
        transport: as for `Consumer`.
    """

    def __init__(
        self,
        topic: str | Sequence[str],
        group_id: str | None = None,
        handler: Handler[KeyT_co, ValueT_co] | Mapping[str, Handler[KeyT_co, ValueT_co]] | None = None,
        *,
        concurrency: int = 10,
        ordering: Ordering = "key",
        executor: ExecutorName | None = None,
        retries: int | None = 5,
        retry_backoff_ms: float = 100,
        retry_backoff_max_ms: float = 30_000,
        retry_on: ErrorTypes | None = None,
        give_up_on: ErrorTypes = (),
        dead_letter_topic: str | None = None,
        create_dead_letter_topic: bool = False,
        handler_timeout_ms: float | None = None,
        key_deserializer: Callable[[bytes], KeyT_co] | None = None,
        value_deserializer: Callable[[bytes], ValueT_co] | None = None,
        on_startup: Hook | None = None,
        on_shutdown: Hook | None = None,
        on_failure: OnFailure | None = None,
        drain_timeout_ms: float = 25_000,
        revocation_timeout_ms: float = 30_000,
        commit_interval_ms: float = 1000,
        max_records: int = settings.WORKER_RECORDS_MAX,
        max_partition_records: int = settings.WORKER_PARTITION_RECORDS_MAX,
        auto_offset_reset: OffsetReset = "earliest",
        lease_ms: float | None = None,
        prefetch: int = 1,
        bootstrap_servers: str | Sequence[str] = "localhost:9400",
        client_id: str = "raftmq-worker",
        group_instance_id: str | None = None,
        session_timeout_ms: int = 45_000,
        max_poll_interval_ms: int = 300_000,
        assignor: str = "sticky",
        rack: str = "",
        request_timeout_ms: float = 30_000,
        transport: Transport | None = None,
    ) -> None:
        self._arguments = GroupArguments(
            topics=(topic,) if isinstance(topic, str) else tuple(topic),
            group_id=group_id if group_id is not None else "",
            bootstrap_servers=bootstrap_servers,
            client_id=client_id,
            group_instance_id=group_instance_id,
            auto_offset_reset=auto_offset_reset,
            session_timeout_ms=session_timeout_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            assignor=assignor,
            rack=rack,
            request_timeout_ms=request_timeout_ms,
            transport=transport,
        )
        check_group_arguments("worker", topic, self._arguments, needs_group=group_id is not None)
        if handler is None:
            raise InvalidArgumentError("a handler must be a function of a record, not None")
        defaults: Mapping[str, object] = Worker.__init__.__kwdefaults__ or {}
        if group_id is None:
            unused = {
                "ordering": ordering,
                "retries": retries,
                "retry_backoff_ms": retry_backoff_ms,
                "retry_backoff_max_ms": retry_backoff_max_ms,
                "max_records": max_records,
                "max_partition_records": max_partition_records,
                "commit_interval_ms": commit_interval_ms,
                "auto_offset_reset": auto_offset_reset,
                "revocation_timeout_ms": revocation_timeout_ms,
                "session_timeout_ms": session_timeout_ms,
                "max_poll_interval_ms": max_poll_interval_ms,
                "assignor": assignor,
                "rack": rack,
            }
            check_queue_arguments(self._arguments.topics, dead_letter_topic, group_instance_id, unused, defaults)
        else:
            check_log_arguments({"lease_ms": lease_ms, "prefetch": prefetch}, defaults)
        if lease_ms is not None:  # None: the topic's
            check_lease(lease_ms)
        check_not_negative(prefetch=prefetch)
        check_whole(prefetch=prefetch)
        self._lease_ms = lease_ms
        self._prefetch = prefetch
        check_text(dead_letter_topic, "dead_letter_topic")
        if ordering not in get_args(Ordering):
            raise InvalidArgumentError(f"ordering {ordering!r}: use key, partition or none")
        check_positive(
            concurrency=concurrency,
            max_partition_records=max_partition_records,
            commit_interval_ms=commit_interval_ms,
        )
        check_not_negative(
            retry_backoff_ms=retry_backoff_ms,
            drain_timeout_ms=drain_timeout_ms,
            revocation_timeout_ms=revocation_timeout_ms,
        )
        check_at_least("max_records", max_records, max_partition_records, "max_partition_records")
        check_at_least("retry_backoff_max_ms", retry_backoff_max_ms, retry_backoff_ms, "retry_backoff_ms")
        # A member that takes longer to release its partitions is removed from the group and loses them.
        check_at_least("max_poll_interval_ms", max_poll_interval_ms, revocation_timeout_ms, "revocation_timeout_ms")
        check_whole(LONG_MAX, concurrency=concurrency, max_records=max_records)
        check_whole(LONG_MAX, max_partition_records=max_partition_records)
        if retries is not None:  # None: no limit
            check_not_negative(retries=retries)
            check_whole(LONG_MAX, retries=retries)
        if handler_timeout_ms is not None:  # None: no limit
            check_positive(handler_timeout_ms=handler_timeout_ms)
        for name, function in (("on_startup", on_startup), ("on_shutdown", on_shutdown), ("on_failure", on_failure)):
            if function is not None and not callable(function):
                raise InvalidArgumentError(f"{name} must be a function, not {function!r}")
        if inspect.iscoroutinefunction(on_failure):
            raise InvalidArgumentError("on_failure must be a plain function, because its result is not awaited")
        topics = self.topics = self._arguments.topics
        if dead_letter_topic in topics:
            raise InvalidArgumentError("the dead-letter topic must differ from the worker's topics")
        if create_dead_letter_topic and dead_letter_topic is None:
            raise InvalidArgumentError("create_dead_letter_topic needs a dead_letter_topic")
        self.group_id = group_id
        self.client_id = client_id
        self._handlers = Handlers(handler, key_deserializer, value_deserializer)
        if self._handlers.topics is not None and self._handlers.topics != frozenset(topics):
            wrong = ", ".join(sorted(self._handlers.topics ^ frozenset(topics)))
            raise InvalidArgumentError(f"topics and handlers must match: these have no topic or no handler: {wrong}")
        self._place = place_of(self._handlers, executor)
        self._hooks = Hooks(on_startup, on_shutdown, on_failure)
        self._handler_timeout_seconds = handler_timeout_ms / 1000 if handler_timeout_ms is not None else None
        self._ordering: Ordering = ordering
        self._retries = RetryPolicy(
            retries,
            retry_backoff_ms / 1000,
            retry_backoff_max_ms / 1000,
            None if retry_on is None else _names_of(retry_on, "retry_on"),
            _names_of(give_up_on, "give_up_on"),
        )
        self._dead_letter_topic = dead_letter_topic
        self._creates_dead_letter_topic = create_dead_letter_topic
        self._limits = WorkLimits(
            concurrency=concurrency,
            records_max=max_records,
            partition_records_max=max_partition_records,
            bytes_max=settings.WORKER_BYTES_MAX,
            drain_seconds=drain_timeout_ms / 1000,
            revocation_seconds=revocation_timeout_ms / 1000,
            commit_interval_seconds=commit_interval_ms / 1000,
        )
        self._rng = random.Random()
        self._generation = current_generation()
        self._executor = self._make_executor()
        self._work_loop: WorkLoop | QueueWorkLoop | None = None
        self._was_started = False
        self._stops = StopRequests(self._pass_on_stop)
        self._dead_letters: DeadLetters | None = None

    # -------------------------------------------------------------------------------------------------------- running

    def run(self) -> None:
        """Work until `stop`, SIGTERM or Ctrl-C, then drain. It blocks. A second signal stops the draining.

        Signals are handled only in the main thread, and the previous handlers are restored at the end. Async handlers run on an event loop of
        their own, in a thread, so that one that blocks does not keep the worker from ending. Raises as `serve` does.
        """
        if self._place == "async":
            self._executor = LoopThreadExecutor(self._handlers, self._handler_timeout_seconds)
        asyncio.run(self._serve_until_signal())

    async def _serve_until_signal(self) -> None:
        with signals_taken(self.stop):
            await self.serve()

    async def serve(self) -> None:
        """Work until `stop`, then drain. Use it instead of `run` in programs that have an event loop and handle signals themselves.

        Async handlers run on that loop, like the rest of the program: a handler that blocks it blocks the worker, too.

        If it is cancelled, it ends immediately without draining, and uncommitted records are processed again.

        Raises:
            DrainTimeoutError: handlers were still running after `drain_timeout_ms`. Everything else is committed.
            PoisonRecordError: a record failed for the last time, and there is no dead-letter topic.
            UnknownTopicError: the topic or the dead-letter topic does not exist.
            TopicKindMismatchError: one of them has the wrong kind.
            BootstrapError: no bootstrap address answered in time.
            FencedError: another process uses the same `group_instance_id`.
            RaftMQError: another error that ends the consumer or the dead-letter topic's producer.
            ClosedClientError: the worker has run before.
        """
        check_not_forked(self._generation, "worker")
        if self._was_started:
            raise ClosedClientError("a worker runs only once: create a new one")
        self._was_started = True
        with self._stops.bound():
            async with AsyncExitStack() as stack:
                if await done_before(self._open_letters(stack), self._stops.stopped):
                    await self._work()

    async def _work(self) -> None:
        loop = self._work_loop = self._make_queue_loop() if self.group_id is None else self._make_group_loop()
        for number in range(self._stops.count):
            loop.stop(at_once=number > 0)
        await loop.run()

    def stop(self) -> None:
        """Ask the worker to drain and end. Returns immediately and may be called from any thread. A second call stops the draining."""
        self._stops.add()

    def _pass_on_stop(self, at_once: bool) -> None:
        if self._work_loop is not None:
            self._work_loop.stop(at_once=at_once)

    def metrics(self) -> WorkerMetrics | None:
        """Return counters and the current state, or None before the worker runs. Call it in the worker's event loop."""
        return self._work_loop.metrics() if self._work_loop is not None else None

    # ------------------------------------------------------------------------------------------------------------ parts

    def _make_executor(self) -> Executor:
        count, timeout = self._limits.concurrency, self._handler_timeout_seconds
        if self._place == "async":
            return LoopExecutor(self._handlers, timeout)
        if self._place == "process":
            return ProcessExecutor(self._handlers, count, timeout)
        return ThreadExecutor(self._handlers, count, timeout)

    def _make_group_loop(self) -> WorkLoop:
        return WorkLoop(
            self._make_consumer,
            self._executor,
            self._ordering,
            self._retries,
            self._limits,
            self._dead_letters,
            self._rng,
            self._hooks,
            self.group_id,
        )

    def _make_queue_loop(self) -> QueueWorkLoop:
        arguments = self._arguments
        queue = WorkQueue(
            arguments.topics[0],
            bootstrap_servers=arguments.bootstrap_servers,
            client_id=arguments.client_id,
            max_block_ms=arguments.request_timeout_ms,
            request_timeout_ms=arguments.request_timeout_ms,
            transport=arguments.transport,
        )
        return QueueWorkLoop(
            queue,
            self._executor,
            self._retries,
            self._limits,
            self._hooks,
            lease_ms=self._lease_ms,
            prefetch=self._prefetch,
        )

    def _make_consumer(self, listener: RebalanceListener) -> GroupConsumer:
        return self._arguments.make_consumer(WorkConsumer, listener)

    async def _open_letters(self, stack: AsyncExitStack) -> None:
        """Find or create the dead-letter topic, and create its producer, which `stack` closes."""
        if self._dead_letter_topic is None:
            return
        await self._prepare_dead_letter_topic(self._dead_letter_topic)
        producer = Producer(
            bootstrap_servers=self._arguments.bootstrap_servers,
            client_id=self.client_id,
            max_block_ms=self._arguments.request_timeout_ms,
            delivery_timeout_ms=settings.DEAD_LETTER_DELIVERY_MS,
            transport=self._arguments.transport,
        )
        await stack.enter_async_context(producer)
        self._dead_letters = self._make_letters(producer, self._dead_letter_topic)

    def _make_letters(self, producer: Producer, topic: str) -> DeadLetters:
        return DeadLetters(producer, topic, self._arguments.group_id, sleep=asyncio.sleep, rng=self._rng)

    async def _prepare_dead_letter_topic(self, name: str) -> None:
        admin = Admin(
            bootstrap_servers=self._arguments.bootstrap_servers,
            client_id=self.client_id,
            request_timeout_ms=self._arguments.request_timeout_ms,
            transport=self._arguments.transport,
        )
        async with admin:
            try:
                found = await admin.describe_topic(name)
                if found.kind != settings.LOG_KIND:
                    raise TopicKindMismatchError(
                        f"the dead-letter topic {name!r} must be a log topic, not a {found.kind} topic"
                    )
            except UnknownTopicError:
                if not self._creates_dead_letter_topic:
                    raise
                sources = [await admin.describe_topic(topic) for topic in self.topics]
                config = {settings.TOPIC_BATCH_BYTES_KEY: str(_letter_bytes_max(sources))}
                await admin.create_topic(name, partitions=len(sources[0].partitions), config=config, if_not_exists=True)


def _letter_bytes_max(sources: Iterable[TopicDescription]) -> int:
    """Return the batch size that a dead-letter topic needs so that records of these topics keep their values."""
    largest = max(int((source.effective_config or {}).get(settings.TOPIC_BATCH_BYTES_KEY, 0)) for source in sources)
    wanted = max(largest, settings.TOPIC_BATCH_BYTES_MAX) + settings.DEAD_LETTER_HEADERS_BYTES
    return min(wanted, settings.REQUEST_BYTES_MAX)


def _names_of(types: ErrorTypes, argument: str) -> frozenset[str]:
    found: Iterable[object] = types if isinstance(types, tuple) else (types,)
    names: set[str] = set()
    for one in found:
        if not isinstance(one, type) or not issubclass(one, BaseException):
            raise InvalidArgumentError(f"{argument} takes an exception class, or a tuple of them, not {one!r}")
        names.add(name_of_class(one))
    return frozenset(names)
