"""Serializers: small objects that turn values into bytes and back, for producers and consumers alike.

::

    FLIGHTS = Json(Flight)                     # a msgspec.Struct, a dataclass, or any type that msgspec knows
    Producer(value_serializer=FLIGHTS.serialize)
    Consumer("flights", value_deserializer=FLIGHTS.deserialize)

Equal values give equal bytes (keys of dicts are sorted), so each of them fits keys, whose bytes decide the partition. A missing key
and a tombstone are None on both sides: neither client asks a serializer about None. Compose with `Serializer.then`:
``Json(Flight).then(Custom(encrypt, decrypt))``.

Must not import protobuf (nor anything heavy) before it is used.
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
    """What all of them have in common. Subclass it for a format of your own, or give two functions to `Custom`."""

    def serialize(self, value: T) -> bytes:
        """The value as bytes. Raises `TypeError` or `ValueError` for what is no value of this serializer."""
        raise NotImplementedError

    def deserialize(self, data: bytes) -> T:
        """The value again. Raises `DeserializationError` for bytes that no value of this serializer has."""
        raise NotImplementedError

    def then(self, outer: Serializer[bytes]) -> Serializer[T]:
        """This one followed by `outer` on the way out, and the other way round on the way in."""
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
    """Bytes as they are; other bytes-like objects become bytes."""

    def serialize(self, value: bytes | bytearray | memoryview) -> bytes:
        """The bytes."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"Bytes takes bytes, not {type(value).__name__}")  # bytes(5) would be five zeros
        return bytes(value)

    def deserialize(self, data: bytes) -> bytes:
        """The bytes."""
        return data


class String(Serializer[str]):
    """Text in an encoding, UTF-8 unless told otherwise."""

    def __init__(self, encoding: str = "utf-8") -> None:
        "".encode(encoding)  # an encoding that does not exist is a LookupError now, not at the first record
        self._encoding = encoding

    def serialize(self, value: str) -> bytes:
        """The encoded text."""
        if not isinstance(value, str):
            raise TypeError(f"String takes str, not {type(value).__name__}")
        try:
            return value.encode(self._encoding)
        except UnicodeEncodeError as error:
            raise _not_encodable(self._encoding, error) from error

    def deserialize(self, data: bytes) -> str:
        """The text."""
        try:
            return data.decode(self._encoding)
        except UnicodeDecodeError as error:
            raise DeserializationError(f"not text in {self._encoding}: {error.reason}") from error


class Custom(Serializer[T]):
    """Two functions as a serializer. What the second raises leaves `deserialize` as it is."""

    def __init__(self, serialize: Callable[[T], bytes], deserialize: Callable[[bytes], T]) -> None:
        self._serialize = serialize
        self._deserialize = deserialize

    def serialize(self, value: T) -> bytes:
        """What the first function makes of it."""
        return self._serialize(value)

    def deserialize(self, data: bytes) -> T:
        """What the second function makes of it."""
        return self._deserialize(data)


def _not_encodable(target: str, error: UnicodeEncodeError) -> InvalidArgumentError:
    """The error for text that a format cannot hold, such as a lone surrogate in UTF-8. It does not quote the value."""
    return InvalidArgumentError(f"the text cannot be written as {target}: {error.reason} at position {error.start}")


class _Typed(Serializer[T]):
    """What JSON and MessagePack share: msgspec's encoder and decoder of one type."""

    _format = ""

    def __init__(self, kind: object, encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> None:
        # msgspec encodes whatever it is given. A record of another class than its readers expect is better refused here; of plain
        # types there are too many that fit each other (an int is a fine float).
        is_record = isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind))
        self._class = kind if is_record and isinstance(kind, type) else None
        self._name = getattr(kind, "__name__", str(kind))
        self._encode = encode
        self._decode = decode

    def serialize(self, value: T) -> bytes:
        """The value in the format."""
        if self._class is not None and not isinstance(value, self._class):
            raise TypeError(f"this serializer takes {self._name}, not {type(value).__name__}")
        try:
            return self._encode(value)
        except UnicodeEncodeError as error:
            raise _not_encodable(self._format, error) from error

    def deserialize(self, data: bytes) -> T:
        """The value, checked against the type."""
        try:
            return self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DeserializationError(f"not {self._name} in {self._format}: {error}") from error


class Json(_Typed[T]):
    """JSON through msgspec: of a `msgspec.Struct`, a dataclass, ``list[int]`` and so on, or without a type of whatever JSON holds.

    Reading checks the type; fields it does not know are skipped, so producers may add some before their consumers know them.
    """

    _format = "JSON"

    @overload
    def __init__(self: Json[Any]) -> None: ...  # Any: JSON without a type is any JSON
    @overload
    def __init__(self, kind: type[T]) -> None: ...
    @overload
    def __init__(self: Json[Any], kind: UnionType) -> None: ...  # Any: a union is no type[T] to type checkers

    def __init__(self, kind: Any = Any) -> None:  # Any: see the overloads
        super().__init__(kind, msgspec.json.Encoder(order="deterministic").encode, msgspec.json.Decoder(kind).decode)


class MessagePack(_Typed[T]):
    """MessagePack through msgspec, as `Json`: about two thirds of the bytes, and faster."""

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
    """Messages of one generated protobuf class."""

    def __init__(self, message_class: type[M]) -> None:
        from google.protobuf.message import DecodeError, Message  # here: who uses no protobuf does not load it

        candidate: object = message_class
        if not (isinstance(candidate, type) and issubclass(candidate, Message)):
            raise TypeError(f"Protobuf takes a generated message class, not {message_class!r}")
        self._class = message_class
        self._decode_error = DecodeError

    def serialize(self, value: M) -> bytes:
        """The message's bytes; maps are sorted, so equal messages of one program have equal bytes."""
        if not isinstance(value, self._class):
            raise TypeError(f"this serializer takes {self._class.__name__}, not {type(value).__name__}")
        return value.SerializeToString(deterministic=True)

    def deserialize(self, data: bytes) -> M:
        """The message."""
        try:
            return self._class.FromString(data)
        except self._decode_error as error:
            raise DeserializationError(f"not a {self._class.__name__}: {error}") from error
