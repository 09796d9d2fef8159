from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
import typing

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


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("Producer", ("consumer", "admin", "worker.worker", "group_session")),
        ("Consumer", ("producer", "admin", "worker.worker", "dispatcher")),
        ("Admin", ("producer", "consumer", "worker.worker", "batch_codec")),
    ],
)
def test_a_client_loads_only_the_modules_it_needs(name: str, others: tuple[str, ...]):
    unneeded = (
        *("cramjam", "lmdb", "uvloop", "typer", "rich", "structlog", "starlette", "google.rpc", "raftmq.broker"),
        *(f"raftmq.client.{other}" for other in others),
    )
    program = f"import sys, raftmq\nraftmq.{name}\nprint([name for name in {unneeded} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr or done.stdout


@pytest.mark.parametrize("name", raftmq.__all__)
def test_every_public_name_exists(name: str):
    assert getattr(raftmq, name) is not None
    assert name in dir(raftmq)


def _named(hint: object, found: set[type]) -> None:
    """Add every class of RaftMQ in an annotation, and in the fields of annotated dataclasses, to `found`."""
    for part in typing.get_args(hint):
        _named(part, found)
    if isinstance(hint, type) and hint.__module__.startswith("raftmq.") and hint not in found:
        found.add(hint)
        if dataclasses.is_dataclass(hint):
            for field in typing.get_type_hints(hint).values():
                _named(field, found)


@pytest.mark.parametrize("owner", [raftmq.Admin, raftmq.Consumer, raftmq.Producer])
def test_every_type_that_a_public_method_names_can_be_imported_from_raftmq(owner: type):
    found: set[type] = set()
    for name, member in inspect.getmembers(owner, inspect.isfunction):
        if name == "__init__" or not name.startswith("_"):
            hints = typing.get_type_hints(member)
            hints.pop("transport", None)  # for simulations
            for hint in hints.values():
                _named(hint, found)
    assert found, "there are some"
    missing = {cls.__name__ for cls in found if getattr(raftmq, cls.__name__, None) is not cls}
    assert not missing


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        raftmq.nonsense  # noqa: B018
