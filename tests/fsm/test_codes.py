"""fsm/codes.py repeats numbers of the protocol."""

from raftmq.fsm import codes
from raftmq.proto import queue_pb2


def test_error_codes_equal_those_of_the_protocol() -> None:
    ours = {name: value for name, value in vars(codes).items() if name.isupper()}
    assert len(ours) > 10
    assert ours == {name: queue_pb2.ErrorCode.Value(name) for name in ours}
