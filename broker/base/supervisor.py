"""Keep the broker's background work running: catch, count and log its failures, and restart it after a pause.

A defect in one control loop must not end the process. Otherwise a defect in work that only a leader does would end one broker after
another as the leadership moves. Only two failures are fatal, because nothing can be trusted after them: a failed commit, and a
registry that cannot be written. This module must not know the purpose of the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import structlog
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.request_error import RequestError
from raftmq.storage.errors import CommitFailedError, RegistryError

log = structlog.get_logger(__name__)

PAUSE_SECONDS_MIN: Final = 0.5
"""The pause after a first failure: most defects depend on a state that has passed by then."""
PAUSE_SECONDS_MAX: Final = 30.0
"""The longest pause: work that always fails costs a traceback and a round this often."""
STEADY_SECONDS: Final = 60.0
"""Work that has not failed for this long has recovered: its pauses begin at the shortest, and no warning names it."""


class Work(StrEnum):
    """Kinds of background work. The values are those of a label of /metrics."""

    ENGINE = "engine"
    """Sends the messages gathered for all groups."""
    METADATA_FOLLOWER = "metadata_follower"
    """Follows metadata: peers' addresses and the replicas that this broker should have."""
    REPLICAS = "replicas"
    """Creates, opens and retires replicas."""
    RECONCILER = "reconciler"
    """Repairs groups and changes their members."""
    CONTROLLER = "controller"
    """Moves replicas and leaderships to the brokers where they should be."""
    COORDINATOR = "coordinator"
    """Keeps sessions and computes assignments of consumer groups."""
    DEAD_LETTERS = "dead_letters"
    """Copies dead messages to their dead letter topics."""
    HOUSEKEEPING = "housekeeping"
    """Enforces retention, truncates logs and grows maps."""
    SPACE_RETURN = "space_return"
    """Returns the space of deleted data to the volume, and empties the trash."""
    SCRUBBER = "scrubber"
    """Reads replicas back to find damage."""
    DISK_WATCH = "disk_watch"
    """Checks the free disk space."""
    CLOCK_WATCH = "clock_watch"
    """Compares the wall clock with those of other brokers."""
    ANNOUNCEMENT = "announcement"
    """Announces this broker's addresses to the cluster."""
    HEALTH = "health"
    """Keeps gRPC health in line with readiness."""
    TOPOLOGY = "topology"
    """Tells clients the leaders of partitions."""
    PEERS = "peers"
    """Keeps the connections to peers and processes their messages about common groups."""
    CONNECTIONS = "connections"
    """Watches the connections to the client port."""
    HTTP = "http"
    """Serves metrics and health over HTTP."""
    REGISTRY = "registry"
    """Makes short writes to the registry."""
    CALLBACK = "callback"
    """Runs any other callback or task of the event loop."""


@dataclass(slots=True)
class _Trouble:
    """Recent failures of one kind of work."""

    count: int
    failed_at: float
    error: str


def is_fatal(error: BaseException) -> bool:
    """Return whether the process must end, because the disk's contents are unknown or the broker cannot record its actions."""
    return isinstance(error, CommitFailedError | RegistryError)


class Supervisor:
    """Runs the background work of one broker. It may be used only on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_fatal: Callable[[BaseException], None]) -> None:
        self._loop = loop
        self._on_fatal = on_fatal
        self._throttle = LogThrottle()
        self._troubles: dict[Work, _Trouble] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.failures: dict[Work, int] = dict.fromkeys(Work, 0)
        """Failures of each kind of work since the start."""

    def spawn(self, work: Work, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the work until it returns. Restart it after each failure, with growing pauses."""
        task = self._loop.create_task(self._keep(work, run))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _keep(self, work: Work, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await run()
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                self.record_failure(work, error)  # the work was not cancelled: something that it awaited was
            except Exception as error:  # noqa: BLE001 -- the root of the work
                self.record_failure(work, error)
                if is_fatal(error):
                    return
            else:
                return
            await asyncio.sleep(self._pause_of(work))

    def _pause_of(self, work: Work) -> float:
        trouble = self._troubles.get(work)
        return pause_after(trouble.count if trouble is not None else 1, PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX)

    def step(self, work: Work) -> AbstractContextManager[None]:
        """Run one step of a round. See `background_step`."""
        return background_step(work, self.record_failure)

    def record_failure(self, work: Work, error: BaseException) -> None:
        """Count and log a failure that was caught. A fatal error ends the process."""
        if is_fatal(error):
            log.error("background_work_failed", loop=work.value, reason=repr(error), exc_info=error)
            self._on_fatal(error)
            return
        self.failures[work] += 1
        now = self._loop.time()
        trouble = self._troubles.get(work)
        if trouble is None or now - trouble.failed_at > STEADY_SECONDS:
            trouble = self._troubles[work] = _Trouble(0, now, "")
        trouble.count += 1
        trouble.failed_at, trouble.error = now, f"{type(error).__name__}: {error}"
        if self._throttle.is_due((work, type(error))):
            log.error("background_work_failed", loop=work.value, reason=repr(error), exc_info=error)

    def failing(self) -> Mapping[Work, str]:
        """Return the work that failed recently, with its last error and the number of failures since it last worked."""
        now = self._loop.time()
        return {
            work: f"{trouble.error} ({trouble.count} times)"
            for work, trouble in self._troubles.items()
            if now - trouble.failed_at <= STEADY_SECONDS
        }

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Record an error that no callback or task caught. It is installed as the loop's exception handler."""
        error = context.get("exception")
        if isinstance(error, Exception):
            self.record_failure(Work.CALLBACK, error)
        else:
            loop.default_exception_handler(dict(context))

    def cancel(self) -> None:
        """End all work, and restart none."""
        for task in list(self._tasks):
            task.cancel()


@contextmanager
def background_step(work: Work, record_failure: Callable[[Work, BaseException], None]) -> Iterator[None]:
    """Run one step of a round and record its failure, so that the steps after it still run. Fatal errors are raised.

    A `RequestError` is no failure: leadership has moved, or metadata is not ready. The next round sees the new state.
    """
    try:
        yield
    except RequestError as error:
        log.debug("background_step_postponed", loop=work.value, reason=str(error))
    except Exception as error:
        record_failure(work, error)
        if is_fatal(error):
            raise


def pause_after(failures: int, seconds_min: float, seconds_max: float) -> float:
    """Return the pause after this many failures in a row: twice as long each time, up to `seconds_max`."""
    return float(min(seconds_min * 2.0 ** min(failures - 1, 30), seconds_max))
