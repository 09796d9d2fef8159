"""Single messages are refused with a reason."""

from __future__ import annotations

from raftmq import errors
from raftmq.client.queue.refusals import refusal
from raftmq.errors import ErrorCode


def test_a_refusal_names_the_message_and_the_reason() -> None:
    error = refusal(ErrorCode.NO_SUCH_MESSAGE, "message 'x'")
    assert isinstance(error, errors.NoSuchMessageError)
    assert str(error) == "message 'x': it is done, was cancelled, or never existed"


def test_a_code_without_a_reason_names_the_message() -> None:
    error = refusal(ErrorCode.QUEUE_FULL, "message 'x'")
    assert isinstance(error, errors.QueueFullError)
    assert error.args[0] == "message 'x'"
