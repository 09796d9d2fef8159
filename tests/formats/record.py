"""Record the formats of this version: ``python -m tests.formats.record`` adds to `recorded/` whatever is missing there.

Recordings stay: a later version must read them. Before 1.0 a format may change. Then delete its recording, record it again, and mark the
change as **format** in CHANGELOG.md.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from raftmq.proto import peer_pb2, queue_pb2
from raftmq.testing import LocalCluster

from tests.formats.commands import MACHINES, Machine
from tests.formats.directory import describe, fill
from tests.formats.protocol import broken_promises, reserved_in
from tests.formats.protocol import describe as describe_protocol
from tests.formats.rows import ROWS
from tests.formats.rows import recording_of as recording_of_row
from tests.formats.wire import frames, handshake
from tests.support.formats import fields_of

RECORDED = Path(__file__).parent / "recorded"
COMMANDS = RECORDED / "commands.json"
PROTOCOL = RECORDED / "protocol.json"
PROTOCOLS = {"clients": queue_pb2.DESCRIPTOR, "peers": peer_pb2.DESCRIPTOR}
ROWS_FILE = RECORDED / "rows.json"
WIRE = RECORDED / "wire.json"
DIRECTORY = RECORDED / "directory.tar.xz"
DESCRIPTION = RECORDED / "directory.json"


def recording_of(machine: Machine, command: msgspec.Struct) -> dict[str, Any]:
    """Return the recording of one command."""
    payload = machine.encode(command)
    return {
        "command": type(command).__name__,
        "level": machine.level_needed(payload),
        "value": msgspec.to_builtins(command),
        "bytes": payload.hex(),
    }


def add_commands() -> int:
    """Record commands that are new or have new fields, and return their number."""
    recorded = json.loads(COMMANDS.read_text()) if COMMANDS.exists() else {}
    fields, samples = recorded.setdefault("fields", {}), recorded.setdefault("samples", {})
    added = 0
    for name, machine in MACHINES.items():
        for command in machine.commands:
            current = fields_of(command)
            if fields.setdefault(name, {}).get(command.__name__) == current:
                continue
            fields[name][command.__name__] = current
            known = samples.setdefault(name, [])
            new = [recording_of(machine, sample) for sample in machine.samples(command)]
            new = [one for one in new if one not in known]
            known += new
            added += len(new)
    COMMANDS.write_text(json.dumps(recorded, indent=1) + "\n")
    return added


def add_directory() -> None:
    """Record the data directory of a broker, and the view of its readers."""
    with tempfile.TemporaryDirectory() as directory:
        with LocalCluster(brokers=1, directory=directory) as cluster:
            fill(cluster)
            DESCRIPTION.write_text(json.dumps(describe(cluster), indent=1) + "\n")
        with tarfile.open(DIRECTORY, "w:xz") as archive:
            for path in sorted(Path(directory).rglob("*")):
                if path.suffix in (".mdb", ".json"):
                    archive.add(path, path.relative_to(directory))


def add_protocols() -> None:
    """Record the protobuf files, unless one breaks a promise that was recorded."""
    recorded = json.loads(PROTOCOL.read_text()) if PROTOCOL.exists() else {}
    for name, file in PROTOCOLS.items():
        current = describe_protocol(file)
        broken = broken_promises(recorded.get(name, {}), current, reserved_in(file))
        if broken:
            raise SystemExit("\n".join(broken))
        recorded[name] = current
    PROTOCOL.write_text(json.dumps(recorded, indent=1) + "\n")


def add_rows() -> None:
    """Record the rows that are new or have new fields."""
    recorded = json.loads(ROWS_FILE.read_text()) if ROWS_FILE.exists() else {}
    for name, row in sorted(ROWS.items()):
        current, known = recording_of_row(row), recorded.setdefault(name, [])
        if current not in known:
            known.append(current)
    ROWS_FILE.write_text(json.dumps(recorded, indent=1) + "\n")


def add_wire() -> None:
    """Record the handshake and the frames between brokers."""
    recorded = json.loads(WIRE.read_text()) if WIRE.exists() else {"handshakes": [], "frames": []}
    for known, current in ((recorded["handshakes"], [handshake()]), (recorded["frames"], frames())):
        known += [one for one in current if one not in known]
    WIRE.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    add_protocols()
    add_wire()
    add_rows()
    print(f"{add_commands()} commands recorded")
    if not DIRECTORY.exists():
        add_directory()
        print("a data directory recorded")
