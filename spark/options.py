"""Reads the options of the data source: one reader for source and sink, and the settings of their connections.

Names are the Kafka connector's, so that moving a job is changing the format's name; a setting of the client (``x.y``) may be given
as ``kafka.x.y``, too. Must not import Spark or open anything.

Invariants: an option that nobody asks for is warned about once per process, never an error, as Spark passes options of its own;
one that asks for protection which does not exist is refused, never ignored.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raftmq.errors import InvalidArgumentError
from raftmq.spark.errors import InvalidOptionError, RaftMQSparkWarning

KAFKA_PREFIX: Final = "kafka."
SECURITY: Final = re.compile(
    r"(?:kafka\.)?(?:security\.|sasl\.|ssl\.|kerberos\.|truststore|keystore|delegation\.)", re.IGNORECASE
)
"""Options of protected connections. Ignoring one would send records in the clear that the user believes protected."""
SPARKS_OWN: Final = frozenset(
    {"path", "checkpointlocation", "queryname", "outputmode", "header", "__datasource_options__", "pathoptionbeforev30"}
)
"""What Spark itself puts among the options of a source or sink, in lower case."""
REQUEST_TIMEOUT_MS: Final = 30_000
"""The SDK's default: longer than an election with a lost node, so that planning survives one."""
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|min|h|d|)")
_DURATION_MS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How to reach the cluster. Hashable: connections are pooled by it."""

    bootstrap_servers: str
    request_timeout_ms: int
    """For each lookup of topics and offsets, finding a broker included."""


class OptionReader:
    """One data source's options, whatever the case of their names; remembers what was asked for, to warn about the rest."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        self._names = {name.lower(): name for name in options}
        self.asked: dict[str, None] = {}
        """Every option that was asked for, in its documented spelling; the documents are checked against it."""

    def has(self, name: str) -> bool:
        """Whether the option was given."""
        self.asked[name] = None
        return name.lower() in self._values

    def text(self, name: str) -> str | None:
        """The option as it was given, without surrounding blanks; None when it was not, or is empty."""
        self.asked[name] = None
        value = self._values.get(name.lower())
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise InvalidOptionError(f"{name} {value!r} holds a lone surrogate, which has no UTF-8 form")
        return value.strip() or None if isinstance(value, str) else None

    def setting(self, name: str) -> str | None:
        """A setting of the client: ``name`` or ``kafka.name``. Raises `InvalidOptionError` when both are given and differ."""
        ours, kafkas = self.text(name), self.text(KAFKA_PREFIX + name)
        if ours is not None and kafkas is not None and ours != kafkas:
            raise InvalidOptionError(f"{name} and {KAFKA_PREFIX}{name} are both given and differ: {ours!r}, {kafkas!r}")
        return ours if ours is not None else kafkas

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1) -> int | None:
        """A whole number of at least `minimum`. Raises `InvalidOptionError`."""
        return _integer(name, self.text(name), default, minimum)

    def setting_integer(self, name: str, default: int, *, minimum: int = 1) -> int:
        """A setting of the client that is a whole number. Raises `InvalidOptionError`."""
        number = _integer(name, self.setting(name), default, minimum)
        assert number is not None
        return number

    def boolean(self, name: str, default: bool) -> bool:
        """``true`` or ``false``. Raises `InvalidOptionError`."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise InvalidOptionError(f"{name} is true or false, not {value!r}")
        return value.lower() == "true"

    def milliseconds(self, name: str, default: int) -> int:
        """A duration such as ``500ms``, ``30s``, ``15m``, ``2h``; milliseconds without a unit. Raises `InvalidOptionError`."""
        value = self.text(name)
        if value is None:
            return default
        match = _DURATION.fullmatch(value.lower())
        if match is None:
            raise InvalidOptionError(f"{name} is a duration such as 500ms, 30s or 15m, not {value!r}")
        return int(match[1]) * _DURATION_MS[match[2]]

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        """One of a few words, in lower case. Raises `InvalidOptionError`."""
        value = (self.text(name) or default).lower()
        if value not in allowed:
            raise InvalidOptionError(f"{name} is {' or '.join(allowed)}, not {value!r}")
        return value

    def finish(self) -> None:
        """Every option was asked for that there is: refuse protection that does not exist, and warn about the rest."""
        known = {name.lower(): name for name in self.asked}
        for name, spelling in self._names.items():
            if SECURITY.match(name):
                self._refuse_security(name, spelling)
            elif name not in known and name not in SPARKS_OWN:
                close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
                hint = f"; did you mean {known[close[0]]!r}?" if close else ""
                # The registry of warnings shows a text once per process and place.
                warnings.warn(f"raftmq: the option {spelling!r} has no effect{hint}", RaftMQSparkWarning, stacklevel=2)

    def _refuse_security(self, name: str, spelling: str) -> None:
        value = self._values[name]
        if name.endswith("security.protocol") and str(value).strip().upper() == "PLAINTEXT":
            return  # what we do
        raise InvalidOptionError(
            f"{spelling}: this release has neither encryption nor authentication, so the option is refused rather than"
            " ignored; take it out if records may travel in the clear"
        )


def read_client_options(reader: OptionReader) -> ClientOptions:
    """The settings of the connection. A client's name is accepted, and without effect: brokers keep none.

    Raises:
        InvalidOptionError: ``bootstrap.servers`` is missing or malformed, or another setting is.
    """
    from raftmq.client.connection.resolver import parse_addresses  # brings gRPC, which looking at options does without

    servers = reader.setting("bootstrap.servers")
    if servers is None:
        raise InvalidOptionError('bootstrap.servers is missing: .option("bootstrap.servers", "host:9400")')
    try:
        addresses = parse_addresses(servers)
    except InvalidArgumentError as error:
        raise InvalidOptionError(f"bootstrap.servers: {servers!r} is not host:port[,host:port...]") from error
    reader.setting("client.id")
    return ClientOptions(
        bootstrap_servers=",".join(addresses),
        request_timeout_ms=reader.setting_integer("request.timeout.ms", REQUEST_TIMEOUT_MS),
    )


def listed(text: str | None) -> tuple[str, ...] | None:
    """Names separated by commas; None where there is none."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip()) or None


def _integer(name: str, value: str | None, default: int | None, minimum: int) -> int | None:
    if value is None:
        return default
    try:
        number = int(value)
    except ValueError:
        raise InvalidOptionError(f"{name} is a whole number, not {value!r}") from None
    if number < minimum:
        raise InvalidOptionError(f"{name} is at least {minimum}, not {number}")
    return number
