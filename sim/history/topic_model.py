"""A topic as the sequential object that metadata promises: the possible answers of each operation in a state, and the next state.

It must not know about time or concurrency, which are handled by `linearizability.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.history.tables import TopicOperation

UNKNOWN_TOPIC = "UnknownTopicError"
TOPIC_EXISTS = "TopicAlreadyExistsError"
NOT_MORE_PARTITIONS = "InvalidPartitionsError"


_TOLD: dict[str, tuple[str, ...]] = {
    "create_topic": (TOPIC_EXISTS,),
    "alter_topic": (UNKNOWN_TOPIC,),
    "add_partitions": (UNKNOWN_TOPIC, NOT_MORE_PARTITIONS),
    "delete_topic": (UNKNOWN_TOPIC,),
}
"""The errors that say something about the topic."""


class Topic(NamedTuple):
    """A topic that exists."""

    partitions: int
    config: frozenset[tuple[str, str]]


class Unrecorded(NamedTuple):
    """The unknown state before the history began, in which every answer is possible."""


State = Topic | Unrecorded | None
"""None if the topic does not exist."""


def state_before(operations: Sequence[TopicOperation]) -> State:
    """Return the state before the first operation: no topic, if the history begins with its creation."""
    first = operations[0]
    return None if first.operation == "create_topic" and first.status != "fail" else Unrecorded()


def says_something(operation: TopicOperation) -> bool:
    """Return whether the operation's outcome reveals or changes the topic's state. A failure for unrelated reasons does not."""
    if operation.operation == "describe_topic":
        return operation.status == "ok" or operation.error == UNKNOWN_TOPIC
    return operation.status != "fail" or operation.error in _TOLD[operation.operation]


def is_certain(operation: TopicOperation) -> bool:
    """Return whether the operation took effect, or answered, before it ended. Otherwise it may take effect later, or never."""
    return operation.status in ("ok", "fail")


def step(state: State, operation: TopicOperation) -> tuple[bool, State]:
    """Return whether the operation can end as it did in this state, and the state after it.

    An operation whose outcome is unknown takes effect if the state allows it, and is otherwise refused without effect.
    """
    if operation.status == "fail":
        return _refused(state, operation)
    if operation.operation == "describe_topic":
        seen = Topic(operation.partitions or 0, frozenset(operation.config.items()))
        return isinstance(state, Unrecorded) or state == seen, seen
    after = _applied(state, operation)
    if after is None:
        return operation.status != "ok", state
    return True, after[0]


def _refused(state: State, operation: TopicOperation) -> tuple[bool, State]:
    """Return whether the reason of a definite failure holds in this state, and the state that is known then."""
    if operation.error == UNKNOWN_TOPIC:
        return not isinstance(state, Topic), None
    if operation.error == TOPIC_EXISTS:
        return state is not None, state
    is_enough = isinstance(state, Unrecorded) or (
        isinstance(state, Topic) and (operation.partitions or 0) <= state.partitions
    )
    return is_enough, state


def _applied(state: State, operation: TopicOperation) -> tuple[State] | None:
    """Return the state after a change, in a tuple, or None if the change is not possible in this state."""
    match operation.operation, state:
        case "create_topic", None | Unrecorded():
            return (Topic(operation.partitions or 1, frozenset(operation.config.items())),)
        case "delete_topic", Topic() | Unrecorded():
            return (None,)
        case "add_partitions", Topic(partitions, config) if (operation.partitions or 0) > partitions:
            return (Topic(operation.partitions or 0, config),)
        case "alter_topic", Topic(partitions, config):
            kept = {name: value for name, value in config if name not in operation.unset}
            return (Topic(partitions, frozenset({**kept, **operation.config}.items())),)
        case (("add_partitions" | "alter_topic"), Unrecorded()):
            return (state,)
        case _:
            return None
