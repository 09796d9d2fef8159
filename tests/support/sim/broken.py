"""`broken`: a block that must break one invariant of the simulator."""

from __future__ import annotations

from typing import Any

import pytest

from sim.core.invariants.violation import InvariantViolation


def broken(name: str) -> Any:
    """Return a context that expects the violation of the invariant with this name."""
    return pytest.raises(InvariantViolation, match=f"^{name}: ")
