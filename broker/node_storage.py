"""Open a node's files, with the threads that read and write them, and close them at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

from raftmq.broker.base.limits import Limits
from raftmq.broker.base.supervisor import Supervisor, Work, is_fatal
from raftmq.broker.cluster.replica_files import refuse_lost_registry, refuse_stale_directory, retire_old_metadata
from raftmq.broker.environment import NodeEnvironment
from raftmq.broker.shutdown import Shutdown
from raftmq.errors import InvariantError
from raftmq.storage.writer_threads import Completion


class NodeStorage:
    """Holds the registry, the replicas' files, the disk reserve, and the pools of threads."""

    def __init__(
        self,
        parts: NodeEnvironment,
        limits: Limits,
        supervisor: Supervisor,
        on_writes_done: Callable[[list[Completion]], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """Open everything.

        Args:
            parts: What the node has of the world.
            limits: The node's limits.
            supervisor: Counts writes of the registry that failed by a defect.
            on_writes_done: Called on the loop with the completions of the writer threads.
            on_fatal: Called from any thread with the error of a failed commit, after which the process must end.

        Raises:
            RegistryError: The registry cannot be read, does not fit the files, or is an older copy.
            VolumeFullError: The volume has too little room to open anything.
        """
        self._loop = asyncio.get_running_loop()
        self._supervisor = supervisor
        self._on_writes_done = on_writes_done
        self._on_fatal = on_fatal
        self.disk = parts.disk_reserve()
        self.disk.prepare_opening()
        self.registry = parts.registry()
        self.store = parts.store(self.disk)
        refuse_lost_registry(self.store, self.registry)
        refuse_stale_directory(self.registry)
        retire_old_metadata(self.store, self.registry)
        self.readers = parts.readers(limits)
        self.writers = parts.writers(self.store, self._on_completions, on_fatal)

    def _on_completions(self, completions: list[Completion]) -> None:
        self._loop.call_soon_threadsafe(self._on_writes_done, completions)

    def in_background(self, write: Callable[..., object], *arguments: object) -> Future[object]:
        """Run a short write of the registry off the loop. If its commit fails, the process ends as after any other."""
        written = self.readers.upkeep.submit(write, *arguments)
        written.add_done_callback(self._on_written)
        return written

    def _on_written(self, done: Future[object]) -> None:
        error = done.exception()
        if error is None:
            return
        if is_fatal(error) or isinstance(error, InvariantError):  # the node's identity contradicts what it remembers
            self._on_fatal(error)
        else:
            self._loop.call_soon_threadsafe(self._supervisor.record_failure, Work.REGISTRY, error)

    async def close(self, end: Shutdown) -> None:
        """Finish the waiting writes, then close the files. A thread that hangs keeps them open."""
        is_idle = await end.phase("writers", self._loop.run_in_executor(None, self.writers.close))
        # the registry's writes are among the work that waits there, and a quarantine must be remembered
        is_idle &= await end.phase("readers", self._loop.run_in_executor(None, self.readers.shutdown))
        if is_idle and await end.phase("files", self._loop.run_in_executor(None, self._close_files)):
            self.registry.close(is_clean=end.is_clean)

    def _close_files(self) -> None:
        for key in self.store.open_replicas():
            self.store.close(key)
