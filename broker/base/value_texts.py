"""Write values of settings for JSON and for people. It needs no package, because the command line without brokers uses it, too."""

from __future__ import annotations


def plain(value: object) -> str | int | float | bool | list[str] | None:
    """Convert a value for JSON."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return [str(part) for part in value] if isinstance(value, tuple | list) else str(value)


def shown(value: object) -> str:
    """Format a value as a person would type it."""
    if value is None or value in ((), []):
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
