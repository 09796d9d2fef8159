"""Requests that are refused as a whole."""

import pytest
from raftmq.broker.base.request_error import RequestError, parsed
from raftmq.proto import queue_pb2 as pb


def test_bytes_that_are_no_message_of_the_method_are_an_invalid_argument_on_every_port():
    request = pb.PollRequest(max_wait_ms=5)
    assert parsed(pb.PollRequest.FromString, request.SerializeToString()) == request
    with pytest.raises(RequestError, match="not a message of this method") as refused:
        parsed(pb.PollRequest.FromString, b"\xff\xff\xff")
    assert refused.value.code == pb.INVALID_ARGUMENT
    assert refused.value.detail.outcome == pb.NOT_APPLIED
