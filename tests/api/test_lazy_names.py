from __future__ import annotations

import subprocess
import sys

import pytest
import raftmq


def test_import_raftmq_loads_neither_grpc_nor_protobuf():
    program = (
        "import sys, raftmq, raftmq.errors, raftmq.types\n"
        "heavy = [name for name in ('grpc', 'google.protobuf', 'cramjam', 'lmdb', 'asyncio') if name in sys.modules]\n"
        "assert not heavy, heavy\n"
        "assert raftmq.Record.__struct_fields__[0] == 'topic'\n"
        "assert 'grpc' not in sys.modules\n"
        "assert raftmq.Producer.__name__ == 'Producer'\n"
        "assert 'grpc' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", raftmq.__all__)
def test_every_public_name_exists(name: str):
    assert getattr(raftmq, name) is not None
    assert name in dir(raftmq)


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        raftmq.nonsense  # noqa: B018
