"""Turn the commands and answers of clients into operations of their history."""

from __future__ import annotations

from collections.abc import Sequence

from raftmq.fsm.queue.commands import Chain, ChangeItem, ChangeOperation, Operation, Settle, SettleDetail
from raftmq.fsm.queue.results import Changed, Code, Settled

from sim.history.queues.operations import Answer, ChangedMessage, SettledMessage, Verb

VERBS = {
    Operation.ACCEPT: Verb.ACCEPT,
    Operation.RELEASE: Verb.RELEASE,
    Operation.REJECT: Verb.REJECT,
    Operation.RENEW: Verb.RENEW,
}
CHANGES = {
    ChangeOperation.MOVE: Verb.MOVE,
    ChangeOperation.CANCEL: Verb.CANCEL,
    ChangeOperation.REDRIVE: Verb.REDRIVE,
}
_ANSWERS = {
    Code.OK: Answer.DONE,
    Code.DIED: Answer.DIED,
    Code.LEASE_LOST: Answer.LOST,
}


def answer_of(code: int) -> Answer | None:
    """Return the answer that a code means, or None if the effect is unknown."""
    return None if code == Code.LEASE_UNKNOWN else _ANSWERS.get(Code(code), Answer.OTHER)


def codes_of(settled: Settled) -> list[int]:
    """Return the code of each message."""
    return [code for code, count in zip(settled.codes, settled.counts, strict=True) for _ in range(count)]


def settled_messages(command: Settle, codes: Sequence[int] | None) -> tuple[SettledMessage, ...]:
    """Return the settlements of a command whose runs have one message each."""
    found = []
    for place, (operation, sequence, number) in enumerate(
        zip(command.operations, command.first_sequences, command.lease_numbers, strict=True)
    ):
        detail_number = command.detail_numbers[place]
        detail = command.details[detail_number - 1] if detail_number else SettleDetail()
        found.append(
            SettledMessage(
                VERBS[Operation(operation)],
                sequence,
                number,
                None if codes is None else answer_of(codes[place]),
                max(detail.delay_ms, 0) if operation == Operation.RELEASE else 0,
                detail.lease_ms if operation == Operation.RENEW else 0,
                operation == Operation.RELEASE and detail.is_counted and detail.delay_ms < 0,
            )
        )
    return tuple(found)


def accepted_messages(command: Chain, codes: Sequence[int] | None) -> tuple[SettledMessage, ...]:
    """Return the settlements of a chain."""
    tokens = zip(command.sequences, command.lease_numbers, strict=True)
    return tuple(
        SettledMessage(Verb.ACCEPT, sequence, number, None if codes is None else answer_of(codes[place]), 0, 0)
        for place, (sequence, number) in enumerate(tokens)
    )


def changed_messages(items: Sequence[ChangeItem], changed: Changed | None) -> tuple[ChangedMessage, ...]:
    """Return the changes of a command."""
    return tuple(
        ChangedMessage(
            CHANGES[ChangeOperation(item.operation)],
            -1 if item.id else item.sequence,
            None if changed is None else answer_of(changed.codes[place]),
            max(item.due, 0) if item.delay_ms < 0 else 0,
            max(item.delay_ms, 0),
            item.id.decode(),
            item.version,
            0 if changed is None else changed.versions[place],
        )
        for place, item in enumerate(items)
    )
