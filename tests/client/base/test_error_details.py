"""A broker's description of a failure reaches the exception."""

from __future__ import annotations

import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from hypothesis import given
from hypothesis import strategies as st
from raftmq.client.base.error_details import detail_from_status, error_from_detail, fresh_copy, with_address
from raftmq.errors import ERROR_CLASSES, ErrorCode, Outcome
from raftmq.proto import queue_pb2 as pb


@pytest.mark.parametrize("code", list(ERROR_CLASSES), ids=lambda code: code.name)
def test_an_error_has_the_outcome_that_the_broker_declares(code: ErrorCode):
    usual = ERROR_CLASSES[code].outcome
    error = error_from_detail(pb.ErrorDetail(code=int(code), message="m", outcome=pb.UNKNOWN_OUTCOME))
    assert error.outcome is Outcome.UNKNOWN
    assert fresh_copy(error).outcome is Outcome.UNKNOWN
    assert ERROR_CLASSES[code].outcome is usual
    assert error_from_detail(pb.ErrorDetail(code=int(code))).outcome is usual


def test_a_brokers_error_names_its_address_unless_it_is_a_usage_error():
    busy = with_address(error_from_detail(pb.ErrorDetail(code=pb.NOT_READY, message="starting")), "broker-2:9400")
    assert (str(busy), busy.address) == ("broker-2:9400: starting", "broker-2:9400")
    again = with_address(fresh_copy(busy), "broker-3:9400")
    assert (str(again), again.address) == ("broker-2:9400: starting", "broker-2:9400")
    mistake = with_address(error_from_detail(pb.ErrorDetail(code=pb.INVALID_CONFIG, message="no key")), "broker-2:9400")
    assert (str(mistake), mistake.address) == ("no key", "broker-2:9400")


def test_an_unknown_code_has_the_outcome_that_the_broker_declares():
    detail = pb.ErrorDetail(message="m", outcome=pb.UNKNOWN_OUTCOME)
    detail.code = 9999  # type: ignore[assignment]  # of a later version
    assert error_from_detail(detail).outcome is Outcome.UNKNOWN


def packed(detail: pb.ErrorDetail) -> Any:
    found = Any()
    found.Pack(detail)
    return found


def by_the_book(status: bytes) -> pb.ErrorDetail | None:
    """Decode with protobuf's own class: the slow twin of `detail_from_status`, which does not need its package."""
    detail = pb.ErrorDetail()
    try:
        return next((detail for each in status_pb2.Status.FromString(status).details if each.Unpack(detail)), None)
    except DecodeError:
        return None


@given(
    code=st.integers(-(1 << 31), (1 << 31) - 1),
    message=st.text(max_size=300),
    others=st.integers(0, 3),
    text=st.text(max_size=300),
)
def test_the_detail_of_a_status_is_found_among_other_details(code: int, message: str, others: int, text: str):
    detail = pb.ErrorDetail(code=int(ErrorCode.THROTTLED), message=text)
    strangers = [Any(type_url="type.googleapis.com/other", value=b"x" * 200) for _ in range(others)]
    status = status_pb2.Status(code=code, message=message, details=[*strangers, packed(detail)]).SerializeToString()
    assert detail_from_status(status) == by_the_book(status) == detail


@given(
    place=st.integers(0, 10_000),
    byte=st.integers(0, 255),
    end=st.integers(0, 10_000),
)
def test_a_damaged_status_is_read_like_protobufs_own_class_does(place: int, byte: int, end: int):
    detail = pb.ErrorDetail(code=int(ErrorCode.NOT_LEADER), message="somebody else leads")
    whole = bytearray(status_pb2.Status(code=14, message="m", details=[packed(detail)]).SerializeToString())
    whole[place % len(whole)] = byte
    damaged = bytes(whole[: end % (len(whole) + 1)])
    found = detail_from_status(damaged)
    assert found is None or found == by_the_book(damaged) or by_the_book(damaged) is None
