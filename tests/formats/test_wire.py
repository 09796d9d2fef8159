"""Frames of earlier versions are read, and programs of earlier versions read the handshake of this one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from raftmq.broker.peers.codec import FRAME_HEADER, LATER_FRAMES, WIRE_VERSION, WIRE_VERSION_MIN, FrameType
from raftmq.broker.peers.protocol import common_wire_version, decode_hello

from tests.formats.record import WIRE
from tests.formats.wire import AGAIN, frames, handshake, hello_of
from tests.support.broker.peer_transports import transport
from tests.support.hostile.samples import joined

RECORDED = json.loads(WIRE.read_text())
HANDSHAKES = RECORDED["handshakes"]


def body_of(recorded: str) -> memoryview:
    return memoryview(bytes.fromhex(recorded))[FRAME_HEADER.size :]


def test_the_handshake_and_every_frame_are_recorded() -> None:
    assert handshake() in HANDSHAKES, "run python -m tests.formats.record"
    assert all(one in RECORDED["frames"] for one in frames()), "run python -m tests.formats.record"
    known = {kind for kind, _ in RECORDED["frames"]} | {"HELLO", "WELCOME", "REFUSED"}
    assert known == {kind.name for kind in FrameType}


@pytest.mark.parametrize(("kind", "body"), RECORDED["frames"], ids=lambda value: value[:30])
def test_a_recorded_frame_is_read_as_it_was_written(kind: str, body: str) -> None:
    assert joined(AGAIN[FrameType[kind]](memoryview(bytes.fromhex(body)))).hex() == body


@pytest.mark.parametrize("recorded", HANDSHAKES)
async def test_a_broker_of_a_recorded_version_is_welcomed(recorded: dict[str, Any]) -> None:
    async with transport(1) as (_, _, address):
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(bytes.fromhex(recorded["hello"]))
        size, kind, _ = FRAME_HEADER.unpack(await reader.readexactly(FRAME_HEADER.size))
        body = await reader.readexactly(size)
        writer.close()
    assert kind == FrameType.WELCOME
    assert decode_hello(memoryview(body)).node_id == 1


@pytest.mark.parametrize("recorded", HANDSHAKES)
def test_a_recorded_welcome_is_understood(recorded: dict[str, Any]) -> None:
    welcome = decode_hello(body_of(recorded["welcome"]))
    assert (welcome.node_id, welcome.uuid, welcome.address, welcome.boot) == (1, "uuid-1", "host-1:9401", 7)
    assert common_wire_version(hello_of(2, 1), welcome) == welcome.wire_versions[1]


@pytest.mark.parametrize("recorded", HANDSHAKES)
def test_a_program_with_the_recorded_fields_reads_this_versions_handshake(recorded: dict[str, Any]) -> None:
    """The first version read these fields, ignored all others, and refused every `wire_version` but its own, which was 1."""
    old = msgspec.defstruct("OldHello", recorded["fields"])
    read: Any = msgspec.msgpack.decode(msgspec.msgpack.encode(hello_of(2, 1)), type=old)
    now = hello_of(2, 1)
    assert [getattr(read, name) for name in recorded["fields"]] == [getattr(now, name) for name in recorded["fields"]]
    assert read.wire_version == WIRE_VERSION_MIN


def test_every_later_frame_belongs_to_a_version_that_is_spoken() -> None:
    assert all(WIRE_VERSION_MIN < version <= WIRE_VERSION for version in LATER_FRAMES.values())
