"""The report of a broken invariant."""

from __future__ import annotations


class InvariantViolation(Exception):  # noqa: N818 - it is what it is called
    """The history just broke a named safety property. The run ends with it."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name


def demand(condition: object, name: str, detail: str) -> None:
    """Raise unless `condition` holds."""
    if not condition:
        raise InvariantViolation(name, detail)
