"""Checks the numbers that a program gives a client, so that each error names its argument. Pure."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Final

from raftmq.errors import InvalidArgumentError

WHOLE_MAX: Final = (1 << 31) - 1
"""What every number of the protocol has room for; in milliseconds 24 days."""
LONG_MAX: Final = (1 << 63) - 1
"""The largest offset, and the largest time in milliseconds."""


def check_not_negative(**arguments: float) -> None:
    """Check arguments that must be 0 or more. Raises `InvalidArgumentError`, or `TypeError` for what is no number."""
    for name, number in arguments.items():
        _check_is_number(name, number)
        if not number >= 0:  # NaN is not either
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
        name: The argument.
        number: Its value.
        minimum: The bound.
        minimum_name: The argument that the bound is the value of, if it is one.
    """
    _check_is_number(name, number)
    if not number >= minimum:
        bound = f"{minimum_name} ({minimum})" if minimum_name else f"{minimum}"
        raise InvalidArgumentError(f"{name} must be at least {bound}, not {number!r}")


def check_whole(maximum: int = WHOLE_MAX, /, **arguments: int) -> None:
    """Check arguments that must be whole numbers up to `maximum`, also where type checkers let a float pass.

    A request cannot be made of anything else, and a client that meets one in the background can only stop.

    Raises:
        TypeError: One is no whole number, such as 6e3.
        InvalidArgumentError: One is too large.
    """
    for name, number in arguments.items():
        given: object = number
        if isinstance(given, bool) or not isinstance(given, Integral):
            raise TypeError(f"{name} is a whole number, not {number!r}")
        if number > maximum:
            raise InvalidArgumentError(f"{name} must be at most {maximum}, not {number!r}")


def _check_is_number(name: str, number: object) -> None:
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"{name} is a number, not {number!r}")
