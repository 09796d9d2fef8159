"""Read the options of the data source, for source and sink, and the settings of their connections.

Names are the Kafka connector's, so that a job is moved by changing the format's name. A setting of the client (``x.y``) may also
be given as ``kafka.x.y``. Must not import Spark or open anything.

Invariants: an unknown option causes one warning per process and never an error, because Spark passes options of its own. An option
that asks for protection that does not exist is refused, never ignored.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raftmq.client.connection.addresses import parse_addresses
from raftmq.errors import InvalidArgumentError
from raftmq.spark.errors import InvalidOptionError, RaftMQSparkWarning

KAFKA_PREFIX: Final = "kafka."
SECURITY: Final = re.compile(
    r"(?:kafka\.)?(?:security\.|sasl\.|ssl\.|kerberos\.|truststore|keystore|delegation\.)", re.IGNORECASE
)
"""Options of protected connections. Ignoring one would send records in clear text that the user believes to be protected."""
SPARKS_OWN: Final = frozenset(
    {"path", "checkpointlocation", "queryname", "outputmode", "header", "__datasource_options__", "pathoptionbeforev30"}
)
"""Options that Spark itself passes to a source or sink, in lower case."""
REQUEST_TIMEOUT_MS: Final = 30_000
"""The SDK's default. It is longer than an election with a lost broker, so that planning survives one."""
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|min|h|d|)")
_DURATION_MS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Hold the settings for reaching a cluster. Hashable, because connections are pooled by it."""

    bootstrap_servers: str
    request_timeout_ms: int
    """Limit for each lookup of topics or offsets, including the time to find a broker."""
    lookup_retries: int = 0
    """How often a lookup that failed after its time limit is repeated.

    Deviation: 3 in the Kafka connector. Here a lookup repeats its requests by itself until the time limit.
    """
    lookup_pause_ms: int = 0
    """The pause before each repetition."""


class OptionReader:
    """Read one data source's options, ignoring the case of their names. Remember the options read, to warn about the rest."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        self._names = {name.lower(): name for name in options}
        self.asked: dict[str, None] = {}
        """Every option that was read, in its documented spelling. A test checks the documents against it."""

    def has(self, name: str) -> bool:
        """Return whether the option was given."""
        self.asked[name] = None
        return name.lower() in self._values

    def text(self, name: str) -> str | None:
        """Return the option as given, without surrounding blanks, or None when it is absent or empty."""
        self.asked[name] = None
        value = self._values.get(name.lower())
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise InvalidOptionError(f"{name} {value!r} holds a lone surrogate, which has no UTF-8 form")
        return value.strip() or None if isinstance(value, str) else None

    def setting(self, name: str) -> str | None:
        """Return a client setting, ``name`` or ``kafka.name``. Raises `InvalidOptionError` when both are given and differ."""
        ours, kafkas = self.text(name), self.text(KAFKA_PREFIX + name)
        if ours is not None and kafkas is not None and ours != kafkas:
            raise InvalidOptionError(f"{name} and {KAFKA_PREFIX}{name} are both given and differ: {ours!r}, {kafkas!r}")
        return ours if ours is not None else kafkas

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1) -> int | None:
        """Return an option that is a whole number of at least `minimum`. Raises `InvalidOptionError`."""
        return _integer(name, self.text(name), default, minimum)

    def setting_integer(self, name: str, default: int, *, minimum: int = 1) -> int:
        """Return a client setting that is a whole number of at least `minimum`. Raises `InvalidOptionError`."""
        number = _integer(name, self.setting(name), default, minimum)
        assert number is not None
        return number

    def boolean(self, name: str, default: bool) -> bool:
        """Return an option that is ``true`` or ``false``. Raises `InvalidOptionError`."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise InvalidOptionError(f"{name} is true or false, not {value!r}")
        return value.lower() == "true"

    def milliseconds(self, name: str, default: int) -> int:
        """Return a duration such as ``500ms``, ``30s``, ``15m`` or ``2h`` in milliseconds, the default unit.

        Raises `InvalidOptionError`.
        """
        value = self.text(name)
        if value is None:
            return default
        match = _DURATION.fullmatch(value.lower())
        if match is None:
            raise InvalidOptionError(f"{name} is a duration such as 500ms, 30s or 15m, not {value!r}")
        return int(match[1]) * _DURATION_MS[match[2]]

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        """Return an option that is one of the words `allowed`, in lower case. Raises `InvalidOptionError`."""
        value = (self.text(name) or default).lower()
        if value not in allowed:
            raise InvalidOptionError(f"{name} is {' or '.join(allowed)}, not {value!r}")
        return value

    def finish(self) -> None:
        """Refuse protection that does not exist, and warn about unknown options. Call it after all options were read."""
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
            return  # the protocol in use
        raise InvalidOptionError(
            f"{spelling}: this release has neither encryption nor authentication, so the option is refused rather than"
            " ignored; remove it if records may travel in clear text"
        )


def read_client_options(reader: OptionReader) -> ClientOptions:
    """Return the settings of the connection. The option ``client.id`` is accepted without effect, because brokers keep no names.

    Raises:
        InvalidOptionError: ``bootstrap.servers`` is missing or malformed, or another setting is.
    """
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


def kind_of(reader: OptionReader) -> str:
    """Return the kind of the topics to subscribe to, ``log`` or ``queue``. Raises `InvalidOptionError`."""
    return reader.choice("kind", "log", ("log", "queue"))


def listed(text: str | None) -> tuple[str, ...] | None:
    """Return the names in a comma-separated text, or None when there are none."""
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
