"""Commands that were recorded are read as they were meant, and need the feature level that they needed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.formats.commands import MACHINES, Machine
from tests.formats.record import COMMANDS
from tests.support.formats import Struct, fields_of, structs_in

RECORDED = json.loads(COMMANDS.read_text())
ADVICE = "give a new field its level in FIELD_LEVELS, and run python -m tests.formats.record"

CASES = [
    pytest.param(MACHINES[machine], sample, id=f"{machine} {sample['command']} {sample['level']}")
    for machine, samples in RECORDED["samples"].items()
    for sample in samples
]


@pytest.mark.parametrize(("machine", "sample"), CASES)
def test_a_recorded_command_has_its_meaning_and_its_level(machine: Machine, sample: dict[str, Any]) -> None:
    payload = bytes.fromhex(sample["bytes"])
    command = machine.decode(payload)
    assert type(command).__name__ == sample["command"]
    assert command == msgspec.convert(sample["value"], type(command))
    assert machine.encode(command) == payload, "equal logs have equal bytes"
    assert machine.level_needed(payload) == sample["level"]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_command_is_recorded_with_all_its_fields(machine: str) -> None:
    current = {command.__name__: fields_of(command) for command in MACHINES[machine].commands}
    assert RECORDED["fields"][machine] == current, ADVICE


COMMAND_TYPES = [command for machine in MACHINES.values() for command in machine.commands]


@pytest.mark.parametrize("command", COMMAND_TYPES)
def test_no_part_of_a_command_is_read_without_a_field_of_a_newer_version(command: Struct) -> None:
    """A broker that ignores a field applies another command than the others do."""
    assert all(part.__struct_config__.forbid_unknown_fields for part in structs_in(command))


@pytest.mark.parametrize("machine", MACHINES)
def test_later_fields_are_not_written_at_their_default(machine: str) -> None:
    """Columns without names are always all written: nothing can be added to them but by a new command."""
    for part in MACHINES[machine].field_levels:
        config = part.__struct_config__  # type: ignore[attr-defined]
        assert config.omit_defaults
        assert not config.array_like
