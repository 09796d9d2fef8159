"""`LocalCluster`: real broker processes on loopback, for tests; ours and our users'.

Must not import the broker or the SDK: the brokers are processes, and a test chooses its client itself.

Invariants: when the context ends, however it ends (error, Ctrl-C, SIGKILL of the owner), no broker of the cluster runs and its temporary
files are gone; a broker keeps its broker id, its data and its addresses across `restart`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
from raftmq.broker_process import BrokerProcess, LocalClusterError
from raftmq.cluster_addresses import Addresses, HeldPorts, load_addresses, numbered, save_addresses
from raftmq.extras import require
from raftmq.methods import DESCRIBE_CLUSTER, DESCRIBE_TOPIC, RequestT, ResponseT, UnaryMethod
from raftmq.proto import queue_pb2

__all__ = ["LocalCluster", "LocalClusterError"]

OWN_COMMAND = (sys.executable, "-m", "raftmq")
"""The ``raftmq`` of this environment; it needs the extra ``server``."""
METADATA_VOTERS_MAX = 3
"""A cluster of three or more is complete when it has this many metadata voters (the brokers' default)."""
STOP_TIMEOUT_SECONDS = 35.0
"""SIGTERM is given this long before SIGKILL; brokers promise to finish within 30 s."""
ASK_TIMEOUT_SECONDS = 2.0
POLL_SECONDS = 0.05


class LocalCluster:
    """A cluster of real broker processes on loopback, each with its own data, ports and host label.

    It needs the extra ``server``: ``pip install 'raftmq[server]'``. Broker ids are 1, 2, …; broker 1 bootstraps, the others join. Works in synchronous code and, as ``async with``, without blocking the
    event loop; the other methods block for milliseconds, except `start`, `stop`, `restart` and `wait_formed`.

    Example::

        with LocalCluster(brokers=3) as cluster:
            cluster.kill(1)
            cluster.restart(1)

    Args:
        brokers: How many, from 1.
        directory: Where data and logs go; kept afterwards, and found again by the next cluster there. A temporary one, removed at
            the end, when None.
        first_port: Where broker 1 takes clients; its peers and HTTP have the two ports after it, each next broker three that are 10
            higher. A port that is taken is replaced by a free one. 0: any free ones. A cluster found again keeps the ports it had.
        timeout_seconds: How long starting, and forming, may each take.
        broker_arguments: More arguments of ``raftmq broker start`` for every broker.
        command: The command that is ``raftmq``; this interpreter's by default.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        directory: str | os.PathLike[str] | None = None,
        first_port: int = 0,
        timeout_seconds: float = 60.0,
        broker_arguments: Sequence[str] = (),
        command: Sequence[str] = OWN_COMMAND,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"a cluster has at least one broker, not {brokers}")
        self._count = brokers
        self._directory = Path(directory).resolve() if directory is not None else None
        self._is_temporary = directory is None
        self._first_port = first_port
        self._timeout_seconds = timeout_seconds
        self._arguments = tuple(broker_arguments)
        self._command = tuple(command)
        self._brokers: dict[int, BrokerProcess] = {}
        self._guard: subprocess.Popen[bytes] | None = None
        self._ports = HeldPorts()
        self._voters: set[int] = set()
        """Broker ids of the metadata voters, as a broker said last."""
        self._unawaited: set[int] = set()
        """Brokers that `restart` started while no majority ran, and nobody has waited for since."""

    # ---------------------------------------------------------------------------------------------------- life cycle

    def start(self) -> Self:
        """Start every broker and wait until they form one cluster; `with` does this.

        Raises:
            LocalClusterError: A broker failed or took too long; everything started is cleaned up again.
            MissingExtraError: This environment cannot run a broker: pip install 'raftmq[server]'.
        """
        if self._guard is not None:
            raise LocalClusterError("the cluster was started already")
        if self._command == OWN_COMMAND:
            require("server", "LocalCluster")
        try:
            self._start_all()
        except BaseException:  # Ctrl-C too: nothing may stay behind
            self.close()
            raise
        return self

    def _start_all(self) -> None:
        if self._is_temporary:
            self._directory = Path(tempfile.mkdtemp(prefix="raftmq-cluster-"))
        directory = self._directory
        assert directory is not None
        directory.mkdir(parents=True, exist_ok=True)
        guard_program = Path(__file__).with_name("cluster_guard.py")
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(guard_program), str(directory) if self._is_temporary else ""],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._brokers = {n: BrokerProcess(n, directory, self._command) for n in range(1, self._count + 1)}
        known = {} if self._is_temporary else load_addresses(directory)
        if len(known) > self._count:
            raise LocalClusterError(f"the cluster in {directory} has {len(known)} brokers, not {self._count}")
        for broker_id, broker in self._brokers.items():
            broker.addresses = self._ports.hold(known.get(broker_id, numbered(broker_id, self._first_port)))
        self._check_can_meet(known)
        # All start together: one that belongs to the cluster serves once a majority of them runs, one that joins it asks until
        # the first one serves.
        join = ("--join", self._seen_address(1, self._brokers[1].client_address))
        for broker_id, broker in self._brokers.items():
            self._launch(broker, *(() if broker_id in known else join if known or broker_id > 1 else ("--bootstrap",)))
        for broker_id, broker in self._brokers.items():
            broker.wait_ready(self._timeout_seconds)
            known[broker_id] = broker.addresses
            if not self._is_temporary:
                save_addresses(directory, known)
        self.wait_formed()

    def _seen_address(self, broker_id: int, address: str) -> str:
        """Where others find what this broker listens to at `address`; not the same where brokers are started in other places."""
        return address

    def _check_can_meet(self, known: Mapping[int, Addresses]) -> None:
        """Brokers find each other where they were: one that moved tells a majority that did not, or nobody learns of it."""
        moved = {
            n: addresses.peer for n, addresses in known.items() if self._brokers[n].addresses.peer != addresses.peer
        }
        if len(known) > 1 and 2 * len(moved) >= len(known):
            raise LocalClusterError(
                f"the brokers cannot find each other: {', '.join(moved.values())} is taken by others"
            )

    def _launch(self, broker: BrokerProcess, *formation: str) -> None:
        pid = broker.start((*formation, *self._arguments))
        self._tell_guard(f"+{pid}")

    def _tell_guard(self, line: str) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            try:
                self._guard.stdin.write(f"{line}\n".encode())
                self._guard.stdin.flush()
            except BrokenPipeError:
                raise LocalClusterError("the guard process of the cluster was killed") from None

    def close(self) -> None:
        """Kill every broker and remove the temporary files; `with` does this. Safe to call again."""
        for broker in self._brokers.values():
            if broker.process is not None:
                broker.process.kill()  # all at once: an end takes a moment. Nothing happens to one that has ended
        for broker in self._brokers.values():
            broker.kill()
        guard, self._guard = self._guard, None
        if guard is not None and guard.stdin is not None:
            try:
                for broker in self._brokers.values():
                    if broker.process is not None:  # reaped: its pid may belong to somebody else soon
                        guard.stdin.write(f"-{broker.process.pid}\n".encode())
                guard.stdin.close()
            except BrokenPipeError:
                pass
            guard.wait()
        self._ports.close()
        if self._is_temporary and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)  # again, in case the guard was killed

    def __enter__(self) -> Self:
        """Start the brokers and wait until they form one cluster."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill every broker and remove the temporary files; a failing block gets the logs' last lines as a note."""
        if isinstance(error, Exception):
            for broker in self._brokers.values():
                error.add_note(broker.log_tail())
        self.close()

    async def __aenter__(self) -> Self:
        """`__enter__` without blocking the event loop. Cancelling waits for the clean-up."""
        # A thread of our own: on cancellation the cluster must be closed after the start ended, not during it.
        with ThreadPoolExecutor(1, "local-cluster") as executor:
            starting = asyncio.get_running_loop().run_in_executor(executor, self.start)
            try:
                return await asyncio.shield(starting)
            except asyncio.CancelledError:
                await asyncio.wait([starting])
                self.close()
                raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """`__exit__`; blocks the loop for the moment that killing takes."""
        self.__exit__(kind, error, trace)

    # ------------------------------------------------------------------------------------------------------- faults

    def kill(self, broker_id: int) -> None:
        """SIGKILL the broker, as ``kill -9`` does, and reap it; works on a paused one too."""
        broker = self._running(broker_id)
        broker.kill()
        self._forget(broker)
        self._unawaited.discard(broker_id)

    def pause(self, broker_id: int) -> None:
        """SIGSTOP the broker: it keeps its connections and does nothing."""
        broker = self._running(broker_id)
        broker.send_signal(signal.SIGSTOP)
        broker.is_paused = True

    def resume(self, broker_id: int) -> None:
        """SIGCONT a paused broker."""
        broker = self._running(broker_id)
        broker.send_signal(signal.SIGCONT)
        broker.is_paused = False

    def stop(self, broker_id: int) -> int:
        """SIGTERM the broker and wait until it has ended; returns its exit code.

        Raises:
            LocalClusterError: It did not end in time and was killed.
        """
        broker = self._running(broker_id)
        broker.send_signal(signal.SIGTERM)
        try:
            code = broker.wait_end(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill(broker_id)
            raise LocalClusterError(
                f"broker {broker_id} ignored SIGTERM for {STOP_TIMEOUT_SECONDS:.0f} s\n{broker.log_tail()}"
            ) from None
        self._forget(broker)
        self._unawaited.discard(broker_id)
        return code

    def stop_all(self) -> None:
        """SIGTERM every running broker, one after the other, so that each hands its leaderships to those that are left.

        Raises:
            LocalClusterError: One did not end in time and was killed.
        """
        for broker_id, broker in self._brokers.items():
            if broker.is_running:
                self.stop(broker_id)

    def restart(self, broker_id: int, *, wait: bool | None = None) -> None:
        """Start the broker again on its data and its addresses, killing it first if it still runs.

        If its data directory was removed meanwhile, it joins the others again, as a broker that lost its disk. A broker serves
        only while a majority of the metadata voters runs. So several brokers that are down are restarted one after the other: the first
        calls return immediately, and the one that completes the majority waits for all of them.

        Args:
            broker_id: Which broker.
            wait: None: return when the broker serves, and those restarted before it, if a majority runs; else immediately. True: return
                when this broker serves, in any case. False: return immediately.

        Raises:
            LocalClusterError: A broker that was waited for ended, or did not serve in time.
        """
        broker = self._broker(broker_id)
        if wait is None:
            self._record_voters()
        if broker.is_running:
            self.kill(broker_id)
        has_data = broker.data_dir.exists()
        if has_data:
            self._launch(broker)  # no flag: a broker that belongs to a cluster knows it
        else:
            others = [other.client_address for other in self._brokers.values() if other is not broker]
            self._launch(broker, "--join", ",".join(others))
        if wait:
            broker.wait_ready(self._timeout_seconds)
        elif wait is None:
            self._unawaited.add(broker_id)
            if self._has_majority(without=None if has_data else broker_id):
                for waiting in sorted(n for n in self._unawaited if not self._brokers[n].is_paused):
                    self._unawaited.discard(waiting)
                    self._brokers[waiting].wait_ready(self._timeout_seconds)

    def _record_voters(self) -> None:
        """Remember who votes on metadata, if a running broker says so: nobody can be asked once a majority is down."""
        try:
            answer = self._ask(DESCRIBE_CLUSTER, queue_pb2.DescribeClusterRequest())
        except (grpc.RpcError, LocalClusterError):
            return
        self._voters = {
            broker.broker.broker_id for broker in answer.brokers if broker.is_metadata_voter
        } or self._voters

    def _has_majority(self, *, without: int | None) -> bool:
        """Whether enough metadata voters run, not counting one that lost its data."""
        running = [
            n for n in self._voters if n in self._brokers and n != without and self._can_answer(self._brokers[n])
        ]
        return 2 * len(running) > len(self._voters)

    def _can_answer(self, broker: BrokerProcess) -> bool:
        return broker.is_running and not broker.is_paused

    # ------------------------------------------------------------------------------------------------- what there is

    @property
    def bootstrap_servers(self) -> str:
        """The client addresses of all brokers, comma-separated, also of those that are down."""
        return ",".join(broker.client_address for broker in self._brokers.values())

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """Every broker's broker id, running or not."""
        return tuple(self._brokers)

    def is_running(self, broker_id: int) -> bool:
        """Whether the broker's process exists (a paused one does)."""
        return self._broker(broker_id).is_running

    def address(self, broker_id: int) -> str:
        """The broker's client address, ``host:port``."""
        return self._broker(broker_id).client_address

    def http_address(self, broker_id: int) -> str:
        """The broker's HTTP address, ``host:port``: ``/metrics``, ``/healthz``, ``/readyz``."""
        return self._broker(broker_id).http_address

    @property
    def directory(self) -> Path:
        """Where data and logs are."""
        if self._directory is None:
            raise LocalClusterError("the cluster is not started")
        return self._directory

    def data_dir(self, broker_id: int) -> Path:
        """The broker's data directory."""
        return self._broker(broker_id).data_dir

    def log_path(self, broker_id: int) -> Path:
        """The file the broker logs to."""
        return self._broker(broker_id).log_path

    def logs(self, broker_id: int) -> str:
        """Everything the broker has logged so far, over all its restarts."""
        return self._broker(broker_id).log_text()

    def pid(self, broker_id: int) -> int:
        """The running broker's process id."""
        process = self._running(broker_id).process
        assert process is not None
        return process.pid

    def wait_ready(self, broker_id: int) -> None:
        """Wait until a broker restarted with ``wait=False`` serves."""
        self._running(broker_id).wait_ready(self._timeout_seconds)

    def wait_formed(self) -> None:
        """Wait until every broker is a connected member and the metadata group has all its voters.

        Raises:
            LocalClusterError: Not within the time limit, or a broker died meanwhile.
        """
        voters = min(METADATA_VOTERS_MAX, self._count - (self._count + 1) % 2)
        seen = "no broker answered"

        def is_formed() -> bool:
            nonlocal seen
            for broker in self._brokers.values():
                if not broker.is_running:
                    raise LocalClusterError(
                        f"broker {broker.broker_id} died while the cluster formed\n{broker.log_tail()}"
                    )
            try:
                answer = self._ask(DESCRIBE_CLUSTER, queue_pb2.DescribeClusterRequest())
            except grpc.RpcError:
                return False
            connected = sum(broker.is_connected for broker in answer.brokers)
            voting = sum(broker.is_metadata_voter for broker in answer.brokers)
            seen = f"{connected} of {self._count} brokers connected, {voting} of {voters} metadata voters"
            self._voters = {broker.broker.broker_id for broker in answer.brokers if broker.is_metadata_voter}
            return connected == self._count and voting >= voters

        if not self._wait(is_formed):
            tails = "\n".join(broker.log_tail() for broker in self._brokers.values())
            raise LocalClusterError(f"the cluster did not form within {self._timeout_seconds:.0f} s: {seen}\n{tails}")

    def leaders(self, topic: str) -> dict[int, int]:
        """Partition → broker id of its leader (0: none known), as a running broker sees it now.

        Raises:
            grpc.RpcError: No running broker answered, or the topic does not exist.
        """
        request = queue_pb2.DescribeTopicRequest(name=topic)
        answer = self._ask(DESCRIBE_TOPIC, request)
        leader_of = {leader.group_id: leader.broker_id for leader in answer.leaders}
        return {p.partition: leader_of.get(p.group_id, 0) for p in answer.topic.partitions}

    def wait_leaders(self, topic: str, *, avoiding: int = 0) -> dict[int, int]:
        """Wait until every partition of the topic has a leader other than broker `avoiding`; returns partition → broker id."""
        found: dict[int, int] = {}

        def is_led() -> bool:
            nonlocal found
            try:
                found = self.leaders(topic)
            except grpc.RpcError:
                return False
            return bool(found) and all(broker not in (0, avoiding) for broker in found.values())

        if not self._wait(is_led):
            raise LocalClusterError(
                f"partitions of {topic!r} still have no (other) leader after {self._timeout_seconds:.0f} s: {found}"
            )
        return found

    # ------------------------------------------------------------------------------------------------------ helpers

    def _ask(self, method: UnaryMethod[RequestT, ResponseT], request: RequestT) -> ResponseT:
        """Ask the running brokers in turn; the first answer, or the last broker's error.

        A plain channel rather than the SDK: what a test helper reports must not depend on what the test examines.
        """
        problem: grpc.RpcError | None = None
        for broker in self._brokers.values():
            if not self._can_answer(broker):
                continue
            # A pool of its own: channels to one address otherwise share their reconnect back-off through the process.
            with grpc.insecure_channel(
                broker.client_address, options=[("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                call: grpc.UnaryUnaryMultiCallable[RequestT, ResponseT] = channel.unary_unary(
                    method.path,
                    request_serializer=method.request_type.SerializeToString,
                    response_deserializer=method.response_type.FromString,
                )
                try:
                    answer: ResponseT = call(request, timeout=ASK_TIMEOUT_SECONDS)
                    return answer
                except grpc.RpcError as error:
                    problem = error
        raise problem or LocalClusterError("no broker of the cluster is running")

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Poll a condition until it holds (True) or the time limit passes (False)."""
        deadline = time.monotonic() + self._timeout_seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _broker(self, broker_id: int) -> BrokerProcess:
        try:
            return self._brokers[broker_id]
        except KeyError:
            raise LocalClusterError(
                f"no broker {broker_id}; there are {list(self._brokers) or 'none yet: the cluster is not started'}"
            ) from None

    def _running(self, broker_id: int) -> BrokerProcess:
        broker = self._broker(broker_id)
        if not broker.is_running:
            raise LocalClusterError(f"broker {broker_id} is not running\n{broker.log_tail()}")
        return broker

    def _forget(self, broker: BrokerProcess) -> None:
        """Tell the guard that a reaped broker's pid is no longer ours."""
        if broker.process is not None:
            self._tell_guard(f"-{broker.process.pid}")
