"""Describe the protobuf files as plain values, and compare two descriptions as peers of different versions meet them."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto

Description = dict[str, dict[str, Any]]


def describe(file: FileDescriptor) -> Description:
    """Return all messages, enumerations and services of a file, by name."""
    messages: dict[str, Any] = {}
    for message in file.message_types_by_name.values():
        _describe_message(message, messages)
    enums = {name: _values(enum) for name, enum in file.enum_types_by_name.items()}
    services = {
        name: {method.name: _method(method) for method in service.methods}
        for name, service in file.services_by_name.items()
    }
    return {"messages": messages, "enums": enums, "services": services}


def _describe_message(message: Descriptor, found: dict[str, Any]) -> None:
    found[message.full_name] = {
        str(field.number): [field.name, field.type, bool(field.is_repeated), _type_name(field)]
        for field in message.fields
    }
    for enum in message.enum_types:
        found[f"{message.full_name}.{enum.name}"] = _values(enum)
    for nested in message.nested_types:
        _describe_message(nested, found)


def _type_name(field: Any) -> str:
    kind = field.message_type or field.enum_type
    return kind.full_name if kind is not None else ""


def _values(enum: Any) -> dict[str, str]:
    return {str(value.number): value.name for value in enum.values}


def _method(method: Any) -> list[Any]:
    return [
        method.input_type.full_name,
        method.output_type.full_name,
        bool(method.client_streaming),
        bool(method.server_streaming),
    ]


def reserved_in(file: FileDescriptor) -> dict[str, list[tuple[int, int]]]:
    """Return the reserved numbers of each message: a field that was removed has its number there."""
    found = {}
    for name, message in file.message_types_by_name.items():
        proto = DescriptorProto()
        message.CopyToProto(proto)
        found[f"{file.package}.{name}"] = [(one.start, one.end) for one in proto.reserved_range]
    return found


def broken_promises(
    recorded: Description, current: Description, reserved: dict[str, list[tuple[int, int]]]
) -> list[str]:
    """Return everything that a program with the recorded files would misunderstand."""
    return [
        f"{section} {name}: {key} was {meaning}, and is {current[section].get(name, {}).get(key)}"
        for section, known in recorded.items()
        for name, entries in known.items()
        for key, meaning in entries.items()
        if current[section].get(name, {}).get(key) != meaning
        and not (section == "messages" and any(a <= int(key) < b for a, b in reserved.get(name, [])))
    ]
