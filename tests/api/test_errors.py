from __future__ import annotations

import pickle

import pytest
from raftmq import errors
from raftmq.client.base.error_details import error_from_detail
from raftmq.errors import ERROR_CLASSES, CorruptBatchError, ErrorCode, Outcome, RaftMQError
from raftmq.proto import queue_pb2 as pb

BRANCHES = (
    errors.UsageError,
    errors.RejectedError,
    errors.UnknownOutcomeError,
    errors.ProtocolError,
    errors.StorageError,
)


def all_classes() -> list[type[RaftMQError]]:
    found, todo = [], [RaftMQError]
    while todo:
        children = todo.pop().__subclasses__()
        found += children
        todo += children
    return found


def test_codes_equal_the_protocol():
    assert {code.name: code.value for code in ErrorCode} == {
        name: number for name, number in pb.ErrorCode.items() if number
    }


def test_every_server_code_has_exactly_one_class():
    codes = [cls.code for cls in all_classes() if cls.code is not None]
    assert sorted(codes) == sorted(ErrorCode)
    assert set(ERROR_CLASSES) == set(ErrorCode)


def test_every_class_is_in_one_branch():
    for cls in all_classes():
        assert sum(issubclass(cls, branch) for branch in BRANCHES) == 1, cls


def test_only_errors_of_the_unknown_branch_have_an_unknown_outcome():
    for cls in all_classes():
        if cls is not errors.UnknownErrorCodeError:  # unknown by nature, a protocol error by cause
            assert (cls.outcome is Outcome.UNKNOWN) == issubclass(cls, errors.UnknownOutcomeError), cls


@pytest.mark.parametrize("code", ErrorCode)
def test_an_error_detail_becomes_the_exception_of_its_code(code: ErrorCode):
    detail = pb.ErrorDetail(code=int(code), message="why", retry_after_ms=7)
    error = error_from_detail(detail, "t/1")
    assert type(error) is ERROR_CLASSES[code]
    assert "t/1" in str(error)
    assert "why" in str(error)
    assert error.retry_after_ms == 7


def test_an_unknown_code_raises_unknown_error_code_error():
    detail = pb.ErrorDetail(message="from the future")
    detail.MergeFromString(b"\x08\x8f\x4e")  # code = 9999
    error = error_from_detail(detail)
    assert isinstance(error, errors.UnknownErrorCodeError)
    assert error.number == 9999


def test_error_details_carry_leader_offsets_and_sequences():
    moved = pb.ErrorDetail(code=pb.NOT_LEADER, leader=pb.LeaderHint(broker_id=3, address="a:1", leader_epoch=9))
    error = error_from_detail(moved)
    assert isinstance(error, errors.NotLeaderError)
    assert (error.leader_broker_id, error.leader_address, error.leader_epoch) == (3, "a:1", 9)
    gone = error_from_detail(pb.ErrorDetail(code=pb.OFFSET_OUT_OF_RANGE, log_start_offset=5, high_watermark=8))
    assert isinstance(gone, errors.OffsetOutOfRangeError)
    assert (gone.log_start_offset, gone.high_watermark) == (5, 8)


def test_an_error_without_a_message_shows_its_docstring():
    first_line = errors.NoLeaderError.__doc__.splitlines()[0]
    assert str(errors.NoLeaderError()) == f"{first_line.rstrip(chr(46))}; {errors.NoLeaderError.advice}"


def test_corrupt_batch_error_survives_pickling():
    error = pickle.loads(pickle.dumps(CorruptBatchError("t", 1, 5, 9)))
    assert (error.topic, error.partition, error.offset, error.next_offset) == ("t", 1, 5, 9)
