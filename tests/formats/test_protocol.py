"""Programs of an earlier version understand the protobuf messages of this one: numbers, types and calls stay."""

from __future__ import annotations

import copy
import json

import pytest

from tests.formats.protocol import broken_promises, describe, reserved_in
from tests.formats.record import PROTOCOL, PROTOCOLS

RECORDED = json.loads(PROTOCOL.read_text())


@pytest.mark.parametrize("name", PROTOCOLS)
def test_what_was_recorded_has_its_meaning(name: str) -> None:
    file = PROTOCOLS[name]
    assert broken_promises(RECORDED[name], describe(file), reserved_in(file)) == []


@pytest.mark.parametrize("name", PROTOCOLS)
def test_everything_is_recorded(name: str) -> None:
    assert describe(PROTOCOLS[name]) == RECORDED[name], "run python -m tests.formats.record"


def test_a_changed_a_removed_and_a_reserved_field_are_told_apart() -> None:
    recorded = {"messages": {"p.A": {"1": ["a", 9, False, ""], "2": ["b", 9, False, ""]}}}
    changed = copy.deepcopy(recorded)
    changed["messages"]["p.A"]["1"][1] = 5
    del changed["messages"]["p.A"]["2"]
    assert [one.split(":")[1] for one in broken_promises(recorded, changed, {})] == [
        " 1 was ['a', 9, False, ''], and is ['a', 5, False, '']",
        " 2 was ['b', 9, False, ''], and is None",
    ]
    assert len(broken_promises(recorded, changed, {"p.A": [(2, 3)]})) == 1
