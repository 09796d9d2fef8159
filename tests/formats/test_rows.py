"""Rows of earlier versions are read, earlier versions see no field of a row that is not used, and a used one stops them."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from raftmq.errors import UnsupportedDataError
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.fsm.row_decoders import row_decoder
from raftmq.fsm.row_levels import ROW_LEVELS

from tests.formats.record import ROWS_FILE
from tests.formats.rows import ROWS, encode, is_closed, parts_of, recording_of
from tests.support.formats import Struct

RECORDED: dict[str, list[dict[str, Any]]] = json.loads(ROWS_FILE.read_text())
ADVICE = "give a new field its level in ROW_LEVELS, and run python -m tests.formats.record"
SAMPLES = [
    pytest.param(name, one, id=f"{name} {n}") for name, all_of in RECORDED.items() for n, one in enumerate(all_of)
]
FSM = Path(__file__).resolve().parents[2] / "fsm"


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_recorded_with_all_its_fields(name: str) -> None:
    assert recording_of(ROWS[name]) == RECORDED[name][-1], ADVICE


@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_a_recorded_row_has_its_meaning(name: str, sample: dict[str, Any]) -> None:
    row = row_decoder(ROWS[name])(bytes.fromhex(sample["bytes"]))
    assert encode(row).hex() == sample["bytes"], "equal states have equal bytes"
    if sample is RECORDED[name][-1]:
        assert repr(row) == sample["value"]


@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_a_recorded_field_keeps_its_default(name: str, sample: dict[str, Any]) -> None:
    """It is not written while it has its default, so another default would change the rows on disk."""
    current = recording_of(ROWS[name])["fields"]
    for part, fields in sample["fields"].items():
        assert {field: current[part].get(field) for field in fields} == fields


@pytest.mark.parametrize("name", ROWS)
def test_a_field_that_was_added_has_a_default_and_a_level(name: str) -> None:
    first = RECORDED[name][0]["fields"]
    for part in parts_of(ROWS[name]):
        added = set(part.__struct_fields__) - set(first.get(part.__name__, part.__struct_fields__))
        assert added <= set(ROW_LEVELS.get(part, {})), ADVICE
        assert not (added and is_closed(part)), "all columns without names are written: use a table of its own"


@pytest.mark.parametrize("part", {part: None for row in ROWS.values() for part in parts_of(row)})
def test_a_field_at_its_default_is_not_written_and_an_unknown_one_is_not_ignored(part: Struct) -> None:
    config = part.__struct_config__
    assert config.forbid_unknown_fields
    assert config.omit_defaults or config.array_like


def test_every_level_belongs_to_a_field_with_a_default() -> None:
    for row, levels in ROW_LEVELS.items():
        fields = {field.name: field for field in msgspec.structs.fields(row)}
        assert all(1 < level <= FEATURE_LEVEL and not fields[name].required for name, level in levels.items())


@pytest.mark.parametrize("name", [name for name in ROWS if name != "Message"])  # it has fields that are only in memory
def test_a_row_with_more_than_is_known_is_of_a_later_version_and_not_damaged(name: str) -> None:
    raw = msgspec.msgpack.decode(bytes.fromhex(RECORDED[name][-1]["bytes"]))
    more = [*raw, "added"] if isinstance(raw, list) else raw | {"added": 1}
    with pytest.raises(UnsupportedDataError, match=f"a {name} with more"):
        row_decoder(ROWS[name])(msgspec.msgpack.encode(more))


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x81", msgspec.msgpack.encode("text"), msgspec.msgpack.encode([])])
def test_a_row_that_is_none_is_damaged(value: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        row_decoder(ROWS["PartitionView"])(value)


def test_no_row_is_decoded_otherwise() -> None:
    """Only commands, which have a check of their own (`test_commands.py`), are read without `row_decoder`."""
    made = {
        path.relative_to(FSM).as_posix()
        for path in FSM.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "Decoder"
    }
    assert made == {
        "log_commands.py", "metadata_commands.py", "queue/commands.py", "queue/enqueued.py", "row_decoders.py",
    }  # fmt: skip
