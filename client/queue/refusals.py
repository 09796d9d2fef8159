"""The errors of single messages. Brokers refuse one of many messages with a code alone, so its reason is added here. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raftmq.client.base.error_details import error_of_code
from raftmq.errors import ErrorCode, RaftMQError

_REASONS: Final[Mapping[int, str]] = {
    ErrorCode.NO_SUCH_MESSAGE: "it is done, was cancelled, or never existed",
    ErrorCode.VERSION_CONFLICT: "it has changed since this version",
    ErrorCode.MESSAGE_LEASED: "a consumer works on it",
    ErrorCode.WRONG_MESSAGE_STATE: "its state does not allow this change: a dead message can only be redriven or cancelled, and no other redriven",
    ErrorCode.LEASE_LOST: "this lease has ended, and nothing was changed",
    ErrorCode.LEASE_UNKNOWN: "it is gone",
    ErrorCode.ATTEMPTS_EXHAUSTED: "this was its last attempt, and it is dead",
}


def refusal(code: int, message: str) -> RaftMQError:
    """Return the error for a message that was refused with a code. `message` names it."""
    reason = _REASONS.get(code)
    return error_of_code(code, message if reason is None else f"{message}: {reason}")
