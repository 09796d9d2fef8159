from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.errors import DeserializationError, Outcome
from raftmq.proto import queue_pb2 as pb
from raftmq.serializers import Bytes, Custom, Json, MessagePack, Protobuf, Serializer, String


class Flight(msgspec.Struct):
    carrier: str
    number: int
    origins: dict[str, int] = {}


class OlderFlight(msgspec.Struct):
    carrier: str


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


@dataclass
class Point:
    x: int
    y: int


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON_VALUES)
def test_json_and_messagepack_round_trip(value: object):
    for serializer in (Json(), MessagePack()):
        assert serializer.deserialize(serializer.serialize(value)) == value


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (Bytes(), b"\x00\xff"),
        (String(), "Grüße"),
        (String("latin-1"), "Grüße"),
        (Json(Flight), Flight("UA", 7, {"EWR": 1})),
        (MessagePack(Flight), Flight("UA", 7)),
        (Json(Point), Point(1, 2)),
        (Json(list[int]), [1, 2]),
        (Json(Cat | Dog), Dog("Rex")),
        (MessagePack(Cat | Dog), Cat(9)),
        (Protobuf(pb.Broker), pb.Broker(broker_id=3, address="a:1")),
        (Custom(str.encode, bytes.decode), "x"),
    ],
)
def test_every_serializer_round_trips(serializer: Serializer[Any], value: object):
    data = serializer.serialize(value)
    assert type(data) is bytes
    found = serializer.deserialize(data)
    assert found == value
    assert type(found) is type(value)


def test_equal_values_have_equal_bytes():
    """The bytes of a key determine its partition."""
    one, other = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}
    for serializer in (Json(), MessagePack(), Json(dict[str, Any])):
        assert serializer.serialize(one) == serializer.serialize(other)
    a, b = pb.CreateTopicRequest(name="t"), pb.CreateTopicRequest(name="t")
    for number in range(20):
        a.config[str(number)] = b.config[str(19 - number)] = "x"
    assert Protobuf(pb.CreateTopicRequest).serialize(a) == Protobuf(pb.CreateTopicRequest).serialize(b)


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (Bytes(), 5),
        (Bytes(), "text"),
        (String(), b"bytes"),
        (Json(Flight), OlderFlight("UA")),
        (Json(Flight), {"carrier": "UA", "number": 7}),
        (Json(Point), (1, 2)),
        (Json(), object()),
        (Protobuf(pb.Broker), pb.Topic()),
    ],
)
def test_a_value_of_another_type_is_a_type_error(serializer: Serializer[Any], value: object):
    with pytest.raises(TypeError):
        serializer.serialize(value)


@pytest.mark.parametrize(
    ("serializer", "data"),
    [
        (String(), b"\xff"),
        (Json(), b"{"),
        (Json(), b'"\xff"'),
        (Json(Flight), b"{}"),
        (Json(Flight), b'{"carrier":"UA","number":"7"}'),
        (MessagePack(Flight), b"\xc1"),
        (MessagePack(Flight), b""),
        (Protobuf(pb.Broker), b"\xff"),
    ],
)
def test_foreign_bytes_raise_deserialization_error(serializer: Serializer[Any], data: bytes):
    with pytest.raises(DeserializationError, match="dead-letter") as raised:
        serializer.deserialize(data)
    assert raised.value.__cause__ is not None
    assert raised.value.outcome is Outcome.NOT_APPLIED


@given(st.binary(max_size=40))
def test_any_bytes_decode_or_raise_deserialization_error(data: bytes):
    for serializer in (String(), Json(), Json(Flight), MessagePack(), MessagePack(Flight), Protobuf(pb.Topic)):
        try:
            serializer.deserialize(data)
        except DeserializationError:
            continue


def test_unknown_fields_are_skipped():
    assert Json(OlderFlight).deserialize(Json(Flight).serialize(Flight("UA", 7))) == OlderFlight("UA")


def test_serializers_compose():
    compressed = Json(Flight).then(Custom(zlib.compress, zlib.decompress))
    data = compressed.serialize(Flight("UA", 7))
    assert zlib.decompress(data) == b'{"carrier":"UA","number":7,"origins":{}}'
    assert compressed.deserialize(data) == Flight("UA", 7)
    twice = String().then(Custom(bytes.swapcase, bytes.swapcase)).then(Custom(zlib.compress, zlib.decompress))
    assert twice.deserialize(twice.serialize("aB")) == "aB"
    assert zlib.decompress(twice.serialize("aB")) == b"Ab"


NO_CLASSES: list[Any] = [dict, pb.Broker(), None]


@pytest.mark.parametrize(
    "make", [*(lambda made=made: Protobuf(made) for made in NO_CLASSES), lambda: String("no-such-encoding")]
)
def test_invalid_serializers_are_refused_at_construction(make: Callable[[], object]):
    with pytest.raises((TypeError, LookupError)):
        make()


def test_protobuf_is_not_loaded_before_it_is_used():
    program = (
        "import sys\n"
        "from raftmq.serializers import Json, Protobuf, String\n"
        "Json(int).deserialize(String().serialize('5'))\n"
        "assert not any(name.startswith('google') for name in sys.modules)\n"
        "from raftmq.proto import queue_pb2\n"
        "Protobuf(queue_pb2.Broker)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("serializer", "data"), [(Json(), b"[" * 100_000), (MessagePack(), b"\x91" * 100_000)])
def test_bytes_that_are_nested_too_deeply_are_invalid(serializer: Serializer[object], data: bytes) -> None:
    """One such record ended programs that skip what is no valid value."""
    with pytest.raises(DeserializationError, match=r"recursion|Stack overflow"):
        serializer.deserialize(data)
