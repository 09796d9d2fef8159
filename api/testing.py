"""`LocalCluster`: real broker processes on loopback, for our tests and those of users.

Must not import the broker or the SDK: the brokers are processes, and a test chooses its own client.

Invariants: however the context ends (error, Ctrl-C, SIGKILL of the owner), no broker of the cluster runs afterwards and its temporary files
are removed. A broker keeps its broker id, its data and its addresses across `restart`.
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
from typing import Self, cast

import grpc
from raftmq.broker_process import BrokerProcess, LocalClusterError
from raftmq.cluster_addresses import Addresses, HeldPorts, load_addresses, numbered, save_addresses
from raftmq.extras import require
from raftmq.methods import (
    DESCRIBE_CLUSTER,
    DESCRIBE_TOPIC,
    DRAIN_BROKER,
    REMOVE_BROKER,
    RequestT,
    ResponseT,
    UnaryMethod,
)
from raftmq.proto import queue_pb2

__all__ = ["LocalCluster", "LocalClusterError"]

OWN_COMMAND = (sys.executable, "-m", "raftmq")
"""The command ``raftmq`` of this environment, which needs the extra ``server``."""
METADATA_VOTERS_MAX = 3
"""The number of metadata voters of a complete cluster of three or more brokers (the brokers' default)."""
STOP_TIMEOUT_SECONDS = 35.0
"""The time between SIGTERM and SIGKILL. Brokers promise to finish within 30 s."""
ASK_TIMEOUT_SECONDS = 2.0
POLL_SECONDS = 0.05


class LocalCluster:
    """A cluster of real broker processes on loopback, each with its own data, ports and host label.

    It needs the extra ``server``: ``pip install 'raftmq[server]'``. Broker ids are 1, 2, …. Broker 1 bootstraps, and the others join. It works
    in synchronous code and, as ``async with``, without blocking the event loop. The other methods block for milliseconds, except `start`,
    `stop`, `restart` and `wait_formed`.

    Example::

        with LocalCluster(brokers=3) as cluster:
            cluster.kill(1)
            cluster.restart(1)

    Args:
        brokers: Number of brokers, at least 1.
        directory: Directory for data and logs. It is kept afterwards, and the next cluster there continues with it. None: a temporary
            directory, which is removed at the end.
        first_port: Client port of broker 1. Its peers and HTTP have the next two ports, and each further broker has ports that are 10
            higher. A port in use is replaced by a free one. 0: any free ports. A cluster that continues keeps its ports.
        timeout_seconds: Time limit of the start of brokers, and of the formation of the cluster.
        broker_arguments: Additional arguments of ``raftmq broker start`` for every broker.
        command: The command ``raftmq``; default: that of this interpreter.
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
            raise ValueError(f"a cluster must have at least one broker, not {brokers}")
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
        """The broker ids of the metadata voters, as a broker last reported."""
        self._unawaited: set[int] = set()
        """Brokers that `restart` started without a majority, and that nothing has waited for since."""
        self._last_id = 0
        """The highest broker id that `add_broker` gave. Ids of removed brokers are not given again."""

    # ---------------------------------------------------------------------------------------------------- life cycle

    def start(self) -> Self:
        """Start every broker and wait until they form one cluster, as ``with`` does.

        Raises:
            LocalClusterError: A broker failed or exceeded the time limit. Everything that was started is cleaned up.
            MissingExtraError: This environment cannot run a broker: pip install 'raftmq[server]'.
        """
        if self._guard is not None:
            raise LocalClusterError("the cluster has already been started")
        if self._command == OWN_COMMAND:
            require("server", "LocalCluster")
        try:
            self._start_all()
        except BaseException:  # also Ctrl-C: nothing may remain
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
        known = {} if self._is_temporary else load_addresses(directory)
        more = [n for n in range(1, self._count + len(known) + 1) if n not in known]
        ids = sorted([*known, *more[: max(0, self._count - len(known))]])
        self._brokers = {n: BrokerProcess(n, directory, self._command) for n in ids}
        if len(known) > self._count:
            raise LocalClusterError(f"the cluster in {directory} has {len(known)} brokers, not {self._count}")
        for broker_id, broker in self._brokers.items():
            broker.addresses = self._ports.hold(known.get(broker_id, numbered(broker_id, self._first_port)))
        self._check_can_meet(known)
        # All brokers start together. A member of the cluster serves when a majority of members runs, and a joining one asks until the first
        # one serves.
        first = ids[0]
        join = ("--join", self._seen_address(first, self._brokers[first].peer_address))
        for broker_id, broker in self._brokers.items():
            self._launch(
                broker, *(() if broker_id in known else join if known or broker_id > first else ("--bootstrap",))
            )
        for broker_id, broker in self._brokers.items():
            broker.wait_ready(self._timeout_seconds)
            known[broker_id] = broker.addresses
            if not self._is_temporary:
                save_addresses(directory, known)
        self.wait_formed()

    def _seen_address(self, broker_id: int, address: str) -> str:
        """Return the address at which others reach what this broker listens to. A subclass changes it if brokers run elsewhere."""
        return address

    def _check_can_meet(self, known: Mapping[int, Addresses]) -> None:
        """Raise unless the brokers can find each other. One with new addresses must be able to tell a majority with the old ones."""
        moved = {
            n: addresses.peer for n, addresses in known.items() if self._brokers[n].addresses.peer != addresses.peer
        }
        if len(known) > 1 and 2 * len(moved) >= len(known):
            raise LocalClusterError(
                f"the brokers cannot find each other: other programs use {', '.join(moved.values())}"
            )

    def _launch(self, broker: BrokerProcess, *formation: str) -> None:
        # A topic that is created before all have joined waits for them, and does not silently get fewer replicas.
        expected = ("--set", f"brokers_expected={self._count}")
        pid = broker.start((*formation, *expected, *self._arguments))
        self._tell_guard(f"+{pid}")

    def _tell_guard(self, line: str) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            try:
                self._guard.stdin.write(f"{line}\n".encode())
                self._guard.stdin.flush()
            except BrokenPipeError:
                raise LocalClusterError("the guard process of the cluster was killed") from None

    def close(self) -> None:
        """Kill every broker and remove the temporary files, as ``with`` does. Safe to call again."""
        for broker in self._brokers.values():
            if broker.process is not None:
                broker.process.kill()  # all of them first, because each end takes a moment. Harmless for one that has ended
        for broker in self._brokers.values():
            broker.kill()
        guard, self._guard = self._guard, None
        if guard is not None and guard.stdin is not None:
            try:
                for broker in self._brokers.values():
                    if broker.process is not None:  # reaped, so another process may get its pid
                        guard.stdin.write(f"-{broker.process.pid}\n".encode())
                guard.stdin.write(b"end\n")  # a child that this process has forked may keep the pipe open
                guard.stdin.close()
            except BrokenPipeError:
                pass
            guard.wait()
        self._ports.close()
        if self._is_temporary and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)  # also done here in case the guard was killed

    def __enter__(self) -> Self:
        """Start the brokers and wait until they form one cluster."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill every broker and remove the temporary files. The exception of a failing block gets the end of each log as a note."""
        if isinstance(error, Exception):
            for broker in self._brokers.values():
                error.add_note(broker.log_tail())
        self.close()

    async def __aenter__(self) -> Self:
        """Start as `__enter__` does, without blocking the event loop. A cancellation waits for the clean-up."""
        # In a separate thread: after a cancellation the cluster must be closed when the start has ended, not during it.
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
        """End as `__exit__` does. Blocks the loop briefly while brokers are killed."""
        self.__exit__(kind, error, trace)

    # ------------------------------------------------------------------------------------------------------- faults

    def kill(self, broker_id: int) -> None:
        """Send SIGKILL to the broker, as ``kill -9`` does, and reap it. Works on a paused one, too."""
        broker = self._running(broker_id)
        broker.kill()
        self._forget(broker)
        self._unawaited.discard(broker_id)

    def pause(self, broker_id: int) -> None:
        """Send SIGSTOP to the broker: it keeps its connections and does nothing."""
        broker = self._running(broker_id)
        broker.send_signal(signal.SIGSTOP)
        broker.is_paused = True

    def resume(self, broker_id: int) -> None:
        """Send SIGCONT to a paused broker."""
        broker = self._running(broker_id)
        broker.send_signal(signal.SIGCONT)
        broker.is_paused = False

    def stop(self, broker_id: int) -> int:
        """Send SIGTERM to the broker, wait until it has ended, and return its exit code.

        Raises:
            LocalClusterError: The broker did not end in time and was killed.
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
        """Send SIGTERM to every running broker, one at a time, so that each transfers its leaderships to the remaining ones.

        Raises:
            LocalClusterError: A broker did not end in time and was killed.
        """
        for broker_id, broker in self._brokers.items():
            if broker.is_running:
                self.stop(broker_id)

    def restart(self, broker_id: int, *, wait: bool | None = None) -> None:
        """Start the broker again on its data and addresses. If it is still running, kill it first.

        If its data directory was removed, it joins the others again, like a broker that lost its disk. A broker serves only while a majority
        of the metadata voters runs. So several brokers that are down are restarted one after another: the first calls return immediately, and
        the call that completes the majority waits for all of them.

        Args:
            broker_id: The broker to restart.
            wait: None: if a majority runs, return when this broker and those restarted before it serve, else immediately. True: always return
                when this broker serves. False: return immediately.

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
            self._launch(broker)  # without a flag: a broker that belongs to a cluster knows it
        else:
            others = [other.peer_address for other in self._brokers.values() if other is not broker]
            self._launch(broker, "--join", ",".join(others))
        if wait:
            broker.wait_ready(self._timeout_seconds)
        elif wait is None:
            self._unawaited.add(broker_id)
            if self._has_majority(without=None if has_data else broker_id):
                for waiting in sorted(n for n in self._unawaited if not self._brokers[n].is_paused):
                    self._unawaited.discard(waiting)
                    self._brokers[waiting].wait_ready(self._timeout_seconds)

    # ------------------------------------------------------------------------------------------------------- members

    def add_broker(self) -> int:
        """Start another broker, which joins the cluster, and wait until it serves. Return its broker id.

        The cluster then moves replicas to it by itself, as long as balancing is automatic.

        Raises:
            LocalClusterError: The broker ended, or did not serve in time.
        """
        directory = self.directory
        self._last_id = broker_id = max(self._last_id, *self._brokers) + 1
        broker = BrokerProcess(broker_id, directory, self._command)
        broker.addresses = self._ports.hold(numbered(broker_id, self._first_port))
        others = [other.peer_address for other in self._brokers.values() if other.is_running]
        self._brokers[broker_id] = broker
        self._launch(broker, "--join", ",".join(others))
        broker.wait_ready(self._timeout_seconds)
        self._count = len(self._brokers)
        self._save_addresses()
        return broker_id

    def remove_broker(self, broker_id: int) -> None:
        """Drain the broker, remove it from the cluster when it is empty, and stop it. Its data are removed, too.

        Raises:
            LocalClusterError: The cluster refuses that, or the broker is not empty within the time limit.
        """
        broker = self._running(broker_id)
        self._order(DRAIN_BROKER, queue_pb2.DrainBrokerRequest(broker_id=broker_id))
        problem: LocalClusterError | None = None

        def is_removed() -> bool:
            nonlocal problem
            try:
                self._order(REMOVE_BROKER, queue_pb2.RemoveBrokerRequest(broker_id=broker_id))
            except LocalClusterError as error:
                problem = error
                return "already removed" in str(error)  # an earlier answer was lost
            return True

        if not self._wait(is_removed):
            raise LocalClusterError(f"broker {broker_id} is not empty after {self._timeout_seconds:.0f} s") from problem
        if broker.is_running:
            self.stop(broker_id)
        del self._brokers[broker_id]
        shutil.rmtree(broker.data_dir, ignore_errors=True)
        self._count = len(self._brokers)
        self._save_addresses()

    def _order(self, method: UnaryMethod[RequestT, ResponseT], request: RequestT) -> ResponseT:
        """Give an operator's order. Raises LocalClusterError if it is refused."""
        try:
            return self._ask(method, request)
        except grpc.RpcError as error:
            said = cast("grpc.Call", error).details()
            raise LocalClusterError(f"{method.name} was refused: {said}") from error

    def _save_addresses(self) -> None:
        if not self._is_temporary:
            save_addresses(self.directory, {n: broker.addresses for n, broker in self._brokers.items()})

    # ------------------------------------------------------------------------------------------------------- majorities

    def _record_voters(self) -> None:
        """Remember the metadata voters, if a running broker reports them: without a majority no broker can answer."""
        try:
            answer = self._ask(DESCRIBE_CLUSTER, queue_pb2.DescribeClusterRequest())
        except (grpc.RpcError, LocalClusterError):
            return
        self._voters = {
            broker.broker.broker_id for broker in answer.brokers if broker.is_metadata_voter
        } or self._voters

    def _has_majority(self, *, without: int | None) -> bool:
        """Return whether a majority of the metadata voters runs, not counting one that lost its data."""
        running = [
            n for n in self._voters if n in self._brokers and n != without and self._can_answer(self._brokers[n])
        ]
        return 2 * len(running) > len(self._voters)

    def _can_answer(self, broker: BrokerProcess) -> bool:
        return broker.is_running and not broker.is_paused

    # ------------------------------------------------------------------------------------------------- what there is

    @property
    def bootstrap_servers(self) -> str:
        """Return the client addresses of all brokers, comma-separated, including those that are down."""
        return ",".join(broker.client_address for broker in tuple(self._brokers.values()))

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """Return the broker id of every broker, running or not."""
        return tuple(self._brokers)

    def is_running(self, broker_id: int) -> bool:
        """Return whether the broker's process exists (a paused one does)."""
        return self._broker(broker_id).is_running

    def address(self, broker_id: int) -> str:
        """Return the broker's client address, ``host:port``."""
        return self._broker(broker_id).client_address

    def http_address(self, broker_id: int) -> str:
        """Return the broker's HTTP address, ``host:port``: ``/metrics``, ``/healthz``, ``/readyz``."""
        return self._broker(broker_id).http_address

    @property
    def directory(self) -> Path:
        """Return the directory of data and logs."""
        if self._directory is None:
            raise LocalClusterError("the cluster is not started")
        return self._directory

    def data_dir(self, broker_id: int) -> Path:
        """Return the broker's data directory."""
        return self._broker(broker_id).data_dir

    def log_path(self, broker_id: int) -> Path:
        """Return the broker's log file."""
        return self._broker(broker_id).log_path

    def logs(self, broker_id: int) -> str:
        """Return everything that the broker has logged so far, over all its restarts."""
        return self._broker(broker_id).log_text()

    def pid(self, broker_id: int) -> int:
        """Return the running broker's process id."""
        process = self._running(broker_id).process
        assert process is not None
        return process.pid

    def wait_ready(self, broker_id: int) -> None:
        """Wait until a broker that was restarted with ``wait=False`` serves."""
        self._running(broker_id).wait_ready(self._timeout_seconds)

    def wait_formed(self) -> None:
        """Wait until every broker is a connected member and the metadata group has all its voters.

        Raises:
            LocalClusterError: The time limit passed, or a broker died.
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
        """Return the broker id of each partition's leader (0: none known), as a running broker sees it now.

        Raises:
            grpc.RpcError: No running broker answered, or the topic does not exist.
        """
        request = queue_pb2.DescribeTopicRequest(name=topic)
        answer = self._ask(DESCRIBE_TOPIC, request)
        leader_of = {leader.group_id: leader.broker_id for leader in answer.leaders}
        return {p.partition: leader_of.get(p.group_id, 0) for p in answer.topic.partitions}

    def wait_leaders(self, topic: str, *, avoiding: int = 0) -> dict[int, int]:
        """Wait until every partition of the topic has a leader other than broker `avoiding`. Return the leaders by partition."""
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
        """Ask the running brokers in turn. Return the first answer, or raise the last broker's error.

        It uses a plain channel instead of the SDK: the report of a test helper must not depend on the code under test.
        """
        problem: grpc.RpcError | None = None
        for broker in self._brokers.values():
            if not self._can_answer(broker):
                continue
            # A separate pool: otherwise channels to one address share their reconnect back-off throughout the process.
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
                f"there is no broker {broker_id}, only {list(self._brokers) or 'none yet, because the cluster is not started'}"
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
