"""Parse the values of configuration keys, from TOML, the environment or the command line.

A parser takes the value of any configuration layer and returns the parsed one. It raises a ValueError whose text describes a valid value,
for an error message that names the key and its source. With pydantic-settings this message and the units of times would still have to be
written by hand, and importing pydantic alone takes 170 ms.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from raftmq.broker.base.addresses import split_address
from raftmq.broker.base.limits import GIB, MIB

_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off", ""})
_SIZE = re.compile(r"([0-9]+)\s*([kmgt]i?b?|b)?\Z", re.IGNORECASE)
_UNITS: Final = {"": 1, "b": 1, "k": 1024, "m": MIB, "g": GIB, "t": 1024 * GIB}
_TIME: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)\Z")
_TIME_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def parse_text(value: object) -> str:
    """Return a text without the spaces around it."""
    if isinstance(value, str):
        return value.strip()
    raise ValueError("a text")


def parse_optional_text(value: object) -> str | None:
    """Return a text, or None if it is empty."""
    return None if value is None else parse_text(value) or None


def parse_flag(value: object) -> bool:
    """Return whether a value means yes."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _TRUE | _FALSE:
        return value.strip().lower() in _TRUE
    raise ValueError("true or false")


def integer_between(minimum: int, maximum: int) -> Callable[[object], int]:
    """Return a parser of whole numbers from `minimum` to `maximum`."""

    def parse(value: object) -> int:
        expected = f"a number between {minimum} and {maximum}"
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise ValueError(expected)  # noqa: TRY004 -- one kind of error for whatever is wrong
        try:
            number = int(value)
        except ValueError:
            raise ValueError(expected) from None
        if not minimum <= number <= maximum:
            raise ValueError(expected)
        return number

    return parse


def seconds_between(minimum: float, maximum: float) -> Callable[[object], float]:
    """Return a parser of times, as a number of seconds or with a unit."""

    def parse(value: object) -> float:
        expected = f"a time between {minimum:g} and {maximum:g} seconds (such as 500ms, 20s, 5m, 2h or 7d)"
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError(expected)  # noqa: TRY004 -- as above
        try:
            match = _TIME.match(value.strip()) if isinstance(value, str) else None
            number = float(match[1]) * _TIME_UNITS[match[2]] if match is not None else float(value)
        except ValueError:
            raise ValueError(expected) from None
        if not minimum <= number <= maximum:  # also refuses nan
            raise ValueError(expected)
        return number

    return parse


def parse_ratio(value: object) -> float:
    """Return a number from 0 to 1."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else -1.0
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:  # also refuses nan
        raise ValueError("a number between 0 and 1")
    return number


def parse_endpoint(value: object) -> str | None:
    """Return the URL of a server that is named by its scheme, host and port, or None if it is empty."""
    text = parse_optional_text(value)
    if text is None:
        return None
    scheme, _, address = text.rstrip("/").partition("://")
    try:
        split_address(address)
    except ValueError:
        scheme = ""
    if scheme not in ("http", "https"):
        raise ValueError("http://HOST:PORT, or https://HOST:PORT for TLS")
    return f"{scheme}://{address}"


def bytes_between(minimum: int, maximum: int) -> Callable[[object], int]:
    """Return a parser of sizes, as a number of bytes or with a unit."""

    def parse(value: object) -> int:
        expected = f"a size between {minimum} and {maximum} bytes (such as 512MiB)"
        match = (
            _SIZE.match(str(value).strip()) if isinstance(value, (int, str)) and not isinstance(value, bool) else None
        )
        if match is None:
            raise ValueError(expected)
        number = int(match[1]) * _UNITS[(match[2] or "").lower()[:1]]
        if not minimum <= number <= maximum:
            raise ValueError(expected)
        return number

    return parse


def optional_bytes_between(minimum: int, maximum: int) -> Callable[[object], int | None]:
    """Return a parser of sizes for which an empty value is None."""
    parse = bytes_between(minimum, maximum)
    return lambda value: None if value is None or value == "" else parse(value)


def parse_address(value: object) -> str:
    """Return an address as `host:port`."""
    text = parse_text(value)
    try:
        split_address(text)
    except ValueError:
        raise ValueError("HOST:PORT") from None
    return text


def parse_optional_host(value: object) -> str | None:
    """Return a host name or an IP address without a port, or None if it is empty."""
    text = parse_optional_text(value)
    if text is not None and ("[" in text or (":" in text and not _is_ipv6(text))):
        raise ValueError("a host name or an IP address, without a port and without brackets")
    return text


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def parse_optional_address(value: object) -> str | None:
    """Parse HOST:PORT, or nothing."""
    return None if value is None or value == "" else parse_address(value)


def parse_addresses(value: object) -> tuple[str, ...]:
    """Return addresses from a list, or from a text with commas between them."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)):
        raise ValueError("HOST:PORT[,HOST:PORT...]")  # noqa: TRY004 -- one kind of error for whatever is wrong
    return tuple(parse_address(part) for part in parts if not isinstance(part, str) or part.strip())


def parse_path(value: object) -> Path:
    """Return a path. A leading ``~`` is the home directory."""
    if isinstance(value, Path):
        return value
    text = parse_text(value)
    if not text:
        raise ValueError("a path")
    return Path(text).expanduser()


def one_of(*choices: str) -> Callable[[object], str]:
    """Return a parser of one of these words."""

    def parse(value: object) -> str:
        text = parse_text(value).lower()
        if text not in choices:
            raise ValueError(" or ".join(choices))
        return text

    return parse


def parse_voters(value: object) -> int:
    """Return a number of voters, which is odd and at most five."""
    number = integer_between(1, 5)(value)
    if number % 2 == 0:
        raise ValueError("1, 3 or 5")
    return number
