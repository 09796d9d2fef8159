"""Serializers: small objects that convert values to bytes and back, for producers and consumers.

::

    FLIGHTS = Json(Flight)                     # a msgspec.Struct, a dataclass, or any type that msgspec knows
    Producer(value_serializer=FLIGHTS.serialize)
    Consumer("flights", value_deserializer=FLIGHTS.deserialize)

Equal values give equal bytes (keys of dicts are sorted), so every serializer is suitable for keys, whose bytes determine the partition. A
missing key and a tombstone are None on both sides: clients do not call serializers for None. Compose with `Serializer.then`:
``Json(Flight).then(Custom(encrypt, decrypt))``.

Must not import protobuf (or another heavy module) before it is used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import msgspec
from raftmq.errors import DeserializationError, InvalidArgumentError

if TYPE_CHECKING:
    from google.protobuf.message import Message

T = TypeVar("T")
M = TypeVar("M", bound="Message")

__all__ = ["Bytes", "Custom", "Json", "MessagePack", "Protobuf", "Serializer", "String"]


class Serializer(Generic[T]):
    """The base class. Subclass it for your own format, or pass two functions to `Custom`."""

    def serialize(self, value: T) -> bytes:
        """Return the value as bytes. Raises `TypeError` or `ValueError` if the serializer does not accept the value."""
        raise NotImplementedError

    def deserialize(self, data: bytes) -> T:
        """Return the value of the bytes. Raises `DeserializationError` for invalid bytes."""
        raise NotImplementedError

    def then(self, outer: Serializer[bytes]) -> Serializer[T]:
        """Return a serializer that applies this one and then `outer`, and deserializes in reverse."""
        return _Chain(self, outer)


class _Chain(Serializer[T]):
    def __init__(self, inner: Serializer[T], outer: Serializer[bytes]) -> None:
        self._inner = inner
        self._outer = outer

    def serialize(self, value: T) -> bytes:
        return self._outer.serialize(self._inner.serialize(value))

    def deserialize(self, data: bytes) -> T:
        return self._inner.deserialize(self._outer.deserialize(data))


class Bytes(Serializer[bytes]):
    """Passes bytes through. Other bytes-like objects become bytes."""

    def serialize(self, value: bytes | bytearray | memoryview) -> bytes:
        """Return the bytes."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"Bytes accepts bytes, not {type(value).__name__}")  # because bytes(5) would be five zeros
        return bytes(value)

    def deserialize(self, data: bytes) -> bytes:
        """Return the bytes."""
        return data


class String(Serializer[str]):
    """Converts text in an encoding, by default UTF-8."""

    def __init__(self, encoding: str = "utf-8") -> None:
        "".encode(encoding)  # raises LookupError for an unknown encoding now, not at the first record
        self._encoding = encoding

    def serialize(self, value: str) -> bytes:
        """Return the encoded text."""
        if not isinstance(value, str):
            raise TypeError(f"String accepts str, not {type(value).__name__}")
        try:
            return value.encode(self._encoding)
        except UnicodeEncodeError as error:
            raise _not_encodable(self._encoding, error) from error

    def deserialize(self, data: bytes) -> str:
        """Return the text."""
        try:
            return data.decode(self._encoding)
        except UnicodeDecodeError as error:
            raise DeserializationError(f"not text in {self._encoding}: {error.reason}") from error


class Custom(Serializer[T]):
    """Combines two functions. `deserialize` raises the exceptions of the second one unchanged."""

    def __init__(self, serialize: Callable[[T], bytes], deserialize: Callable[[bytes], T]) -> None:
        self._serialize = serialize
        self._deserialize = deserialize

    def serialize(self, value: T) -> bytes:
        """Return the result of the first function."""
        return self._serialize(value)

    def deserialize(self, data: bytes) -> T:
        """Return the result of the second function."""
        return self._deserialize(data)


def _not_encodable(target: str, error: UnicodeEncodeError) -> InvalidArgumentError:
    """Return the error for text that a format cannot encode, such as a lone surrogate in UTF-8. It does not quote the value."""
    return InvalidArgumentError(f"the text cannot be encoded as {target}: {error.reason} at position {error.start}")


class _Typed(Serializer[T]):
    """The common part of JSON and MessagePack: msgspec's encoder and decoder of one type."""

    _format = ""

    def __init__(self, kind: object, encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> None:
        # msgspec encodes any value. A record of another class than its readers expect is better refused here. Plain types are not checked,
        # because too many of them are compatible (an int is a valid float).
        is_record = isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind))
        self._class = kind if is_record and isinstance(kind, type) else None
        self._name = getattr(kind, "__name__", str(kind))
        self._encode = encode
        self._decode = decode

    def serialize(self, value: T) -> bytes:
        """Return the value in the format."""
        if self._class is not None and not isinstance(value, self._class):
            raise TypeError(f"this serializer accepts {self._name}, not {type(value).__name__}")
        try:
            return self._encode(value)
        except UnicodeEncodeError as error:
            raise _not_encodable(self._format, error) from error

    def deserialize(self, data: bytes) -> T:
        """Return the value, checked against the type."""
        try:
            return self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DeserializationError(f"not {self._name} in {self._format}: {error}") from error


class Json(_Typed[T]):
    """Converts JSON with msgspec: a `msgspec.Struct`, a dataclass, ``list[int]`` and so on, or any JSON if no type is given.

    Reading checks the type. Unknown fields are skipped, so producers may add fields before their consumers know them.
    """

    _format = "JSON"

    @overload
    def __init__(self: Json[Any]) -> None: ...  # Any: JSON without a type is any JSON
    @overload
    def __init__(self, kind: type[T]) -> None: ...
    @overload
    def __init__(self: Json[Any], kind: UnionType) -> None: ...  # Any: for type checkers a union is no type[T]

    def __init__(self, kind: Any = Any) -> None:  # Any: see the overloads
        super().__init__(kind, msgspec.json.Encoder(order="deterministic").encode, msgspec.json.Decoder(kind).decode)


class MessagePack(_Typed[T]):
    """Converts MessagePack with msgspec, like `Json`, with about two thirds of the bytes, and faster."""

    _format = "MessagePack"

    @overload
    def __init__(self: MessagePack[Any]) -> None: ...  # Any: as Json
    @overload
    def __init__(self, kind: type[T]) -> None: ...
    @overload
    def __init__(self: MessagePack[Any], kind: UnionType) -> None: ...  # Any: as Json

    def __init__(self, kind: Any = Any) -> None:  # Any: see the overloads
        super().__init__(
            kind, msgspec.msgpack.Encoder(order="deterministic").encode, msgspec.msgpack.Decoder(kind).decode
        )


class Protobuf(Serializer[M]):
    """Converts messages of one generated protobuf class."""

    def __init__(self, message_class: type[M]) -> None:
        from google.protobuf.message import (
            DecodeError,
            Message,
        )  # here, so that programs without protobuf do not load it

        candidate: object = message_class
        if not (isinstance(candidate, type) and issubclass(candidate, Message)):
            raise TypeError(f"Protobuf needs a generated message class, not {message_class!r}")
        self._class = message_class
        self._decode_error = DecodeError

    def serialize(self, value: M) -> bytes:
        """Return the message's bytes. Maps are sorted, so equal messages of one program have equal bytes."""
        if not isinstance(value, self._class):
            raise TypeError(f"this serializer accepts {self._class.__name__}, not {type(value).__name__}")
        return value.SerializeToString(deterministic=True)

    def deserialize(self, data: bytes) -> M:
        """Return the message."""
        try:
            return self._class.FromString(data)
        except self._decode_error as error:
            raise DeserializationError(f"not a {self._class.__name__}: {error}") from error
