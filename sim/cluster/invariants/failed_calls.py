"""`CallsHaveNoDefect`: no call ends with an error of the program. A client only sees that the outcome is unknown, as after many faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.grpc_port import handlers
from raftmq.broker.services.append_session import AppendSession
from raftmq.storage.errors import ReplicaStorageError

from sim.cluster.invariants.served import PlantedDefect
from sim.cluster.world.host import HOST
from sim.core.invariants.violation import demand


def watch_calls(judge: Callable[[Callable[[], None]], None]) -> Callable[[], None]:
    """Have the error of each such call judged. Return a function that ends it."""
    internal_error, fail = handlers.internal_error, AppendSession._fail

    def watched_append(self: Any, request: Any, error: Exception) -> None:  # noqa: ANN401 -- the product's method
        judge(lambda: check_failed_call(repr(HOST.get()), "Append", error))
        fail(self, request, error)

    def watched(method: str, failure: BaseException) -> RequestError:
        judge(lambda: check_failed_call(repr(HOST.get()), method, failure))
        return internal_error(method, failure)

    def undo() -> None:
        handlers.internal_error = internal_error
        AppendSession._fail = fail  # type: ignore[method-assign]

    handlers.internal_error = watched
    AppendSession._fail = watched_append  # type: ignore[method-assign]
    return undo


def check_failed_call(broker: str, method: str, error: BaseException) -> None:
    """Check that only a fault explains the error that ended a call."""
    is_explained = isinstance(error, PlantedDefect | ReplicaStorageError)
    demand(is_explained, "CallsHaveNoDefect", f"{broker} answers {method} with a defect: {error!r}")
