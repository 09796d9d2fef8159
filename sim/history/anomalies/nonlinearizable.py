"""Metadata that is not linearizable: no order of the operations on a topic explains all answers and respects real time.

Each topic name is judged separately. A change with an unknown outcome may happen at any later time, or never. A description that says that
it may be old is a state that the topic once had, not before one that the same process was shown.

Source: Herlihy and Wing 1990. `sim/history/linearizability.py` has the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sim.history.finding import Finding, finding
from sim.history.linearizability import Call, Linearizable, check_linearizable
from sim.history.linearizability import Outcome as SearchOutcome
from sim.history.tables import NEVER, History, TopicOperation
from sim.history.topic_model import State, is_certain, says_something, state_before, step

NAME: Final = "nonlinearizable"
EVIDENCE_MAX: Final = 20
"""Maximum number of operations shown of a topic: the last ones that could be put in order, and the ones that could not."""


def find(history: History) -> tuple[list[Finding], list[str]]:
    """Find topics without a valid order. Return the findings, and the topics for which the search gave up."""
    findings: list[Finding] = []
    undecided: list[str] = []
    for topic, operations in sorted(history.topic_operations.items()):
        telling = [operation for operation in operations if says_something(operation)]
        if not telling:
            continue
        calls = [_call(operation) for operation in telling]
        initial: State = state_before(operations)
        outcome = check_linearizable(calls, initial, step)
        if outcome.answer is Linearizable.UNDECIDED:
            undecided.append(f"{topic}: {len(calls)} operations, {outcome.configuration_count} configurations visited")
        elif outcome.answer is Linearizable.NO:
            findings.append(_describe(topic, telling, outcome))
    return findings, undecided


def _call(operation: TopicOperation) -> Call[TopicOperation]:
    is_required = is_certain(operation)
    return Call(
        operation,
        operation.process,
        operation.invoked_at,
        operation.ended_at if is_required else NEVER,
        is_required,
        is_stale_allowed=operation.is_unconfirmed,
        is_shown=operation.status == "ok",
    )


def _describe(topic: str, operations: Sequence[TopicOperation], outcome: SearchOutcome) -> Finding:
    explained = set(outcome.explained)
    stuck = [operation for at, operation in enumerate(operations) if at not in explained and is_certain(operation)]
    shown = [operations[at] for at in outcome.explained[-EVIDENCE_MAX // 2 :]] + stuck[: EVIDENCE_MAX // 2]
    evidence = [operation.invoked_at for operation in shown]
    evidence += [int(operation.ended_at) for operation in shown if operation.ended_at != NEVER]
    text = (
        f"{topic}: no order explains all {len(operations)} operations; after {len(explained)} of them, "
        f"{stuck[0].operation} by {stuck[0].process} cannot follow"
    )
    return finding(NAME, text, *evidence)
