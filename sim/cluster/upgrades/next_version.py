"""The next version of the program, as a shim over this one. It adds one of each thing that a later version may add.

- A command (`SetNote`) and a field of a command (`NextSetBalancing.note`), both of a feature level of their own.
- A field of a row (`NextClusterRow.note`), which the two set.
- A wire version with a type of frame, which it sends beside each question for the clock.

Both versions run in one process: the host in whose context the code runs tells its version. This module must not know the tests.
"""

# ruff: noqa: ANN401 -- the shim has the parameters of the product's methods

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from raftmq.broker.cluster.peer_directory import PeerDirectory
from raftmq.broker.cluster.peer_events import PeerEvents
from raftmq.broker.peers import codec
from raftmq.broker.peers.codec import FrameType
from raftmq.broker.peers.transport import PeerTransport
from raftmq.fsm import feature_levels, metadata, metadata_tables
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.metadata_tables import ClusterRow, MetadataTables
from raftmq.fsm.row_levels import ROW_LEVELS
from raftmq.types import NodeId

from sim.cluster.environment import SimParts
from sim.cluster.world.host import HOST

NEXT_LEVEL: Final = feature_levels.FEATURE_LEVEL + 1
NEXT_WIRE_VERSION: Final = codec.WIRE_VERSION + 1
_GREETING_NUMBER: Final = 200


class SetNote(mc.Command, frozen=True, tag="next note"):
    """The added command."""

    note: int


class NextSetBalancing(mc.SetBalancing, frozen=True, tag="balancing="):
    """The command with the added field."""

    note: int = 0


class NextClusterRow(ClusterRow, frozen=True):
    """The row with the added field."""

    note: int = 0


def _greeting() -> FrameType:
    """Return the added type of frame, which the enumeration does not have."""
    member = int.__new__(FrameType, _GREETING_NUMBER)
    member._name_, member._value_ = "GREETING", _GREETING_NUMBER
    return member


GREETING: Final = _greeting()
_NEXT_DECODER: Final[msgspec.msgpack.Decoder[SetNote | NextSetBalancing]] = msgspec.msgpack.Decoder(
    SetNote | NextSetBalancing
)


def is_next_version() -> bool:
    """Return whether the current host runs the next version."""
    host = HOST.get()
    return host is not None and host.is_next_version


def _decode_added(payload: bytes) -> SetNote | NextSetBalancing | None:
    """Return a command that only the next version can read, or None."""
    try:
        return _NEXT_DECODER.decode(payload)
    except msgspec.MsgspecError:
        return None


class NextVersion:
    """Adds the next version to the product, for the hosts that run it."""

    row_type: type[ClusterRow] = NextClusterRow

    def __init__(self) -> None:
        self.greetings_sent = 0
        self.greetings_kept = 0
        """Number of greetings that were not sent because the connection has the earlier wire version."""
        self.greetings_received = 0
        self.on_refused_frame: Callable[[str], None] = lambda reason: None
        """Called when a peer's frame was not understood."""

    @property
    def counts(self) -> dict[str, int]:
        """Return counts that show that both wire versions were used."""
        return {
            "greetings_sent": self.greetings_sent,
            "greetings_kept": self.greetings_kept,
            "greetings_received": self.greetings_received,
        }

    def install(self) -> Callable[[], None]:
        """Change the product. Return a function that undoes it."""
        changes: list[tuple[Any, str, Any]] = [
            (SimParts, "feature_level", self._feature_level),
            (metadata, "decode_command", self._decode),
            (metadata, "metadata_level", self._level),
            (metadata, "_execute", self._execute),
            (MetadataTables, "__init__", self._with_rows),
            (MetadataTables, "restore", self._with_rows),
            (PeerDirectory, "hello", self._hello),
            (PeerTransport, "send", self._send),
            (PeerTransport, "say_refused", self._say_refused),
            (PeerEvents, "on_frame", self._on_frame),
        ]
        kept = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
        for owner, name, make in changes:
            setattr(owner, name, make(getattr(owner, name)))
        codec.FRAME_TYPES[_GREETING_NUMBER] = GREETING
        codec.LATER_FRAMES[_GREETING_NUMBER] = NEXT_WIRE_VERSION
        row_levels: Any = ROW_LEVELS
        row_levels[NextClusterRow] = {**ROW_LEVELS[ClusterRow], "note": NEXT_LEVEL}

        def undo() -> None:
            for owner, name, value in kept:
                setattr(owner, name, value)
            del codec.FRAME_TYPES[_GREETING_NUMBER], codec.LATER_FRAMES[_GREETING_NUMBER], row_levels[NextClusterRow]

        return undo

    # ------------------------------------------------------------------------------------------------ the command

    def _feature_level(self, feature_level: Any) -> Any:
        return lambda parts: NEXT_LEVEL if is_next_version() else feature_level(parts)

    def _decode(self, decode: Any) -> Any:
        def decode_next(payload: bytes) -> Any:
            command = decode(payload)
            return _decode_added(payload) if command is None and is_next_version() else command

        return decode_next

    def _level(self, level_of: Any) -> Any:
        def level(payload: bytes) -> Any:
            needed = level_of(payload)
            is_added = needed is None and is_next_version() and _decode_added(payload) is not None
            return NEXT_LEVEL if is_added else needed

        return level

    def _execute(self, execute: Any) -> Any:
        def execute_next(tables: MetadataTables, command: Any, append_time_ms: int) -> Any:
            if isinstance(command, NextSetBalancing):
                known = {name: getattr(command, name) for name in mc.SetBalancing.__struct_fields__}
                result = execute(tables, mc.SetBalancing(**known), append_time_ms)
                if not isinstance(result, mc.Done):
                    return result
            elif not isinstance(command, SetNote):
                return execute(tables, command, append_time_ms)
            tables.update_cluster(note=command.note)
            return mc.Done(tables.cluster.revision)

        return execute_next

    def _with_rows(self, method: Any) -> Any:
        """Let a method of the tables use the type of row of the host's version."""

        def with_rows(*arguments: Any) -> None:
            module: Any = metadata_tables
            module.ClusterRow = self.row_type if is_next_version() else ClusterRow
            try:
                method(*arguments)
            finally:
                module.ClusterRow = ClusterRow

        return with_rows

    # ------------------------------------------------------------------------------------------------ the frame

    def _hello(self, hello: Any) -> Any:
        def hello_next(peers: PeerDirectory, target: NodeId, channel: Any) -> Any:
            said = hello(peers, target, channel)
            return msgspec.structs.replace(said, wire_version_max=NEXT_WIRE_VERSION) if is_next_version() else said

        return hello_next

    def _send(self, send: Any) -> Any:
        def send_next(transport: PeerTransport, node_id: NodeId, channel: Any, frame_type: FrameType, body: Any) -> Any:
            if frame_type is FrameType.CLOCK_QUESTION and is_next_version() and transport.is_connected(node_id):
                if send(transport, node_id, channel, GREETING, [b"hello"]):
                    self.greetings_sent += 1
                else:
                    self.greetings_kept += 1
            return send(transport, node_id, channel, frame_type, body)

        return send_next

    def _say_refused(self, say_refused: Any) -> Any:
        def say(transport: PeerTransport, error: Exception) -> None:
            self.on_refused_frame(str(error))
            say_refused(transport, error)

        return say

    def _on_frame(self, on_frame: Any) -> Any:
        def on_frame_next(events: PeerEvents, node_id: NodeId, frame_type: FrameType, body: memoryview) -> None:
            if frame_type == _GREETING_NUMBER:
                self.greetings_received += 1
                if not is_next_version():
                    self.on_refused_frame("a greeting reached a broker of the version before")
            else:
                on_frame(events, node_id, frame_type, body)

        return on_frame_next
