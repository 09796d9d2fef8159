"""What a broker says of a failure reaches the exception."""

from __future__ import annotations

import pytest
from raftmq.client.error_details import error_from_detail, fresh_copy
from raftmq.errors import ERROR_CLASSES, ErrorCode, Outcome
from raftmq.proto import queue_pb2 as pb


@pytest.mark.parametrize("code", list(ERROR_CLASSES), ids=lambda code: code.name)
def test_the_outcome_that_the_broker_declares_is_the_errors(code: ErrorCode):
    usual = ERROR_CLASSES[code].outcome
    error = error_from_detail(pb.ErrorDetail(code=int(code), message="m", outcome=pb.UNKNOWN_OUTCOME))
    assert error.outcome is Outcome.UNKNOWN
    assert fresh_copy(error).outcome is Outcome.UNKNOWN
    assert ERROR_CLASSES[code].outcome is usual
    assert error_from_detail(pb.ErrorDetail(code=int(code))).outcome is usual


def test_a_code_that_this_client_does_not_know_has_the_declared_outcome_too():
    detail = pb.ErrorDetail(message="m", outcome=pb.UNKNOWN_OUTCOME)
    detail.code = 9999  # type: ignore[assignment]  # of a later version
    assert error_from_detail(detail).outcome is Outcome.UNKNOWN
