"""Checks numbers and flags among the arguments of a client, so that each error names its argument. Pure."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Final

from raftmq.errors import InvalidArgumentError

WHOLE_MAX: Final = (1 << 31) - 1
"""The largest number that fits into every field of the protocol; 24 days in milliseconds."""
LONG_MAX: Final = (1 << 63) - 1
"""The largest offset, and the largest time in milliseconds."""


def check_not_negative(**arguments: float) -> None:
    """Check arguments that must be 0 or more. Raises `InvalidArgumentError`, or `TypeError` for a value that is not a number."""
    for name, number in arguments.items():
        _check_is_number(name, number)
        if not number >= 0:  # also false for NaN
            raise InvalidArgumentError(f"{name} must be 0 or more, not {number!r}")


def check_positive(**arguments: float) -> None:
    """Check arguments that must be above 0. Raises as `check_not_negative`."""
    for name, number in arguments.items():
        _check_is_number(name, number)
        if not number > 0:
            raise InvalidArgumentError(f"{name} must be positive, not {number!r}")


def check_range(name: str, number: float, minimum: float, maximum: float) -> None:
    """Check one argument between two bounds, inclusive. Raises as `check_not_negative`."""
    _check_is_number(name, number)
    if not minimum <= number <= maximum:
        raise InvalidArgumentError(f"{name} must be between {minimum} and {maximum}, not {number!r}")


def check_at_least(name: str, number: float, minimum: float, minimum_name: str = "") -> None:
    """Check one argument against its lower bound, inclusive. Raises as `check_not_negative`.

    Args:
        name: The name of the argument.
        number: Its value.
        minimum: The lower bound.
        minimum_name: The argument whose value is the bound, if there is one.
    """
    _check_is_number(name, number)
    if not number >= minimum:
        bound = f"{minimum_name} ({minimum})" if minimum_name else f"{minimum}"
        raise InvalidArgumentError(f"{name} must be at least {bound}, not {number!r}")


def check_whole(maximum: int = WHOLE_MAX, /, **arguments: int) -> None:
    """Check arguments that must be whole numbers up to `maximum`, even where type checkers accept a float.

    A request cannot contain anything else, and a client that finds such a value in the background can only stop.

    Raises:
        TypeError: An argument is not a whole number, such as 6e3.
        InvalidArgumentError: An argument is too large.
    """
    for name, number in arguments.items():
        given: object = number
        if isinstance(given, bool) or not isinstance(given, Integral):
            raise TypeError(f"{name} must be a whole number, not {number!r}")
        if number > maximum:
            raise InvalidArgumentError(f"{name} must be at most {maximum}, not {number!r}")


def check_flag(**arguments: bool) -> None:
    """Check arguments that must be True or False. Raises `TypeError`: the text ``"false"`` must not count as true."""
    for name, flag in arguments.items():
        given: object = flag
        if not isinstance(given, bool):
            raise TypeError(f"{name} must be True or False, not {flag!r}")


def _check_is_number(name: str, number: object) -> None:
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"{name} must be a number, not {number!r}")
