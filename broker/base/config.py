"""Load a broker's configuration from defaults, then `raftmq.toml`, then `RAFTMQ_*`, then flags, with the origin of each value.

Every key is checked. An unknown key is refused with a suggestion or the list of keys, so that a typing error is never ignored.
"""

from __future__ import annotations

import re
import socket
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar

from dynaconf import Dynaconf
from dynaconf.utils.inspect import get_history
from raftmq.broker.base.addresses import EVERY_ADDRESS, is_loopback, split_address
from raftmq.broker.base.config_parsers import (
    bytes_between,
    integer_between,
    one_of,
    optional_bytes_between,
    parse_address,
    parse_addresses,
    parse_endpoint,
    parse_flag,
    parse_optional_address,
    parse_optional_host,
    parse_optional_text,
    parse_path,
    parse_ratio,
    parse_text,
    parse_voters,
    seconds_between,
)
from raftmq.broker.base.limits import GIB, MIB, Limits, Timing
from raftmq.fsm.topic_config import suggestion

T = TypeVar("T")

ENVIRONMENT_PREFIX: Final = "RAFTMQ_"
DEFAULT_FILE: Final = Path("raftmq.toml")
FOREIGN_ENVIRONMENT: Final = frozenset({"bootstrap_servers"})
"""`RAFTMQ_*` variables that belong to the clients."""
_SERVICE_NAME: Final = re.compile(
    r"RAFTMQ_(?:[A-Z0-9_]+_)?"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)\Z"
)
_SERVICE_PORT_NAME: Final = re.compile(r"RAFTMQ_(?:[A-Z0-9_]+_)?PORT\Z")
_SERVICE_PORT_VALUE: Final = re.compile(r"(?:tcp|udp|sctp)://\S+\Z")


class ConfigError(ValueError):
    """Raised when the configuration cannot be used. The message names the key, its origin and the accepted values."""


def is_service_link(name: str, text: str) -> bool:
    """Return whether Kubernetes sets this variable in every container because a service is called ``raftmq`` or ``raftmq-*``.

    Such a variable holds an address of the service (``RAFTMQ_SERVICE_HOST``, ``RAFTMQ_PORT_9400_TCP_ADDR``,
    ``RAFTMQ_PORT=tcp://...``) and is no setting of a broker. A plain ``*_PORT`` counts only with a URL as its value: otherwise it is
    a mistyped setting.
    """
    if _SERVICE_NAME.match(name) is not None:
        return True
    return _SERVICE_PORT_NAME.match(name) is not None and _SERVICE_PORT_VALUE.match(text) is not None


# ------------------------------------------------------------------------------------------------------------- the keys


class Scope(Enum):
    """The brokers for which a setting can be changed while they run."""

    BROKER = "all brokers, or one"
    CLUSTER = "all brokers"
    """One value for all, because it must not depend on which of them leads."""


_PARSE: Final = "parse"
_MEANING: Final = "meaning"
_SCOPE: Final = "scope"


def _key(default: T, parse: Callable[[object], T], meaning: str, scope: Scope | None = None) -> T:
    return field(default=default, metadata={_PARSE: parse, _MEANING: meaning, _SCOPE: scope})


_DEFAULT_DATA_DIR = Path("raftmq-data")
_LIMITS = Limits()
_TIMING = Timing()


def _time(default: float, meaning: str) -> float:
    return _key(default, seconds_between(0.001, 86_400), meaning)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """All settings of a broker. Fields with the names of fields of `Limits` and `Timing` set those."""

    data_dir: Path = _key(_DEFAULT_DATA_DIR, parse_path, "directory of all durable data")  # noqa: RUF009 -- a field
    listen: str = _key("127.0.0.1:9400", parse_address, "address for clients (port 0: any free port)")
    peer_listen: str = _key("127.0.0.1:9401", parse_address, "address for other brokers")
    http_listen: str = _key("127.0.0.1:9402", parse_address, "address of metrics and health")
    data_listen: str | None = _key(
        None,
        parse_optional_address,
        "address on which clients append and poll without gRPC, under the same host name as listen; default: any free port of the host "
        "of listen",
    )
    advertise: str | None = _key(
        None, parse_optional_host, "host name at which others reach this broker. Default: the host of listen"
    )
    peer_advertise: str | None = _key(
        None,
        parse_optional_host,
        "host name at which other brokers reach this broker, if clients use another one. Default: advertise",
    )
    host: str | None = _key(
        None,
        parse_optional_text,
        "machine label: replicas of a partition are spread over machines. Default: the host name",
    )
    rack: str = _key("", parse_text, "rack or zone label: replicas of a partition are also spread over racks")
    broker_id: int = _key(0, integer_between(0, (1 << 31) - 1), "requested broker id (0: the cluster assigns one)")
    bootstrap: bool = _key(False, parse_flag, "form a new cluster of this one broker")
    join: tuple[str, ...] = _key(
        (),
        parse_addresses,
        "peer addresses of brokers of the cluster to join. With bootstrap: of brokers that may already have formed it",
    )
    cluster_id: str = _key(
        "", parse_text, "id of the only cluster that this broker may belong to. That cluster is never formed again"
    )
    replace_lost: bool = _key(
        False,
        parse_flag,
        "replace the broker with this broker_id, whose disk is lost, even if partitions lose their majority",
    )
    disk_reserve_bytes: int | None = _key(
        None,
        optional_bytes_between(0, 1 << 60),
        "free disk space below which appends are refused. Default: min(max(2 GiB, 3 %), 20 % of the volume)",
        Scope.BROKER,
    )
    brokers_expected: int = _key(
        _LIMITS.brokers_expected,
        integer_between(1, 1000),
        "number of brokers with which the cluster begins. Until so many have joined (or 3), a topic that is created without a "
        "replication factor waits for them",
    )
    metadata_voters: int = _key(
        3, parse_voters, "number of voters of the metadata group, the same on all brokers: 1, 3 or 5"
    )
    writer_threads: int = _key(4, integer_between(1, 64), "number of threads that commit to disk")
    partitions_max: int = _key(
        _LIMITS.partitions_max, integer_between(1, 100_000), "maximum number of partition replicas on this broker"
    )
    map_bytes: int = _key(64 * GIB, bytes_between(MIB, 1 << 46), "address space of one replica's file")
    log_level: str = _key("info", one_of("debug", "info", "warning", "error"), "minimum log level", Scope.BROKER)
    tracing_endpoint: str | None = _key(
        None,
        parse_endpoint,
        "OpenTelemetry collector (OTLP over gRPC) that gets the spans of requests, such as http://127.0.0.1:4317. Needs the extra otel. "
        "Default: no tracing",
    )
    tracing_sample_ratio: float = _key(
        0.0,
        parse_ratio,
        "share of the requests without a trace that begin one. A request of a client's trace has a span if that trace is sampled",
    )
    allow_insecure_remote: bool = _key(
        False, parse_flag, "allow listening beyond loopback although there are no credentials yet"
    )
    # limits
    uncommitted_bytes_max: int = _key(
        _LIMITS.uncommitted_bytes_max,
        bytes_between(MIB, 1 << 40),
        "maximum payload that is proposed and not yet applied",
    )
    inbound_append_bytes_max: int = _key(
        _LIMITS.inbound_append_bytes_max,
        bytes_between(MIB, 1 << 40),
        "maximum payload that is received and not yet durable",
    )
    scrub_bytes_per_second: int = _key(
        _LIMITS.scrub_bytes_per_second,
        bytes_between(64 * 1024, 1 << 40),
        "rate at which files are read back in the background to find damage",
        Scope.BROKER,
    )
    recent_entries_bytes_max: int = _key(
        _LIMITS.recent_entries_bytes_max, bytes_between(MIB, 1 << 40), "memory for recent batches"
    )
    parked_polls_max: int = _key(
        _LIMITS.parked_polls_max, integer_between(1, 1_000_000), "maximum number of long polls that wait simultaneously"
    )
    consumer_groups_max: int = _key(
        _LIMITS.consumer_groups_max, integer_between(1, 100_000), "maximum number of consumer groups in the cluster"
    )
    group_members_max: int = _key(
        _LIMITS.group_members_max, integer_between(1, 10_000), "maximum number of members of one consumer group"
    )
    members_max: int = _key(
        _LIMITS.members_max, integer_between(1, 1_000_000), "maximum number of members of all consumer groups"
    )
    concurrent_rpcs_max: int = _key(
        _LIMITS.concurrent_rpcs_max, integer_between(16, 1_000_000), "maximum number of simultaneous calls and streams"
    )
    # timing
    data_tick_seconds: float = _time(_TIMING.data_tick_seconds, "heartbeat interval of partitions")
    data_election_ticks: int = _key(
        _TIMING.data_election_ticks, integer_between(3, 1000), "missed heartbeats before an election of a partition"
    )
    metadata_tick_seconds: float = _time(_TIMING.metadata_tick_seconds, "heartbeat interval of the metadata group")
    metadata_election_ticks: int = _key(
        _TIMING.metadata_election_ticks,
        integer_between(3, 1000),
        "missed heartbeats before an election of the metadata group",
    )
    retention_check_seconds: float = _time(_TIMING.retention_check_seconds, "interval of enforcing retention")
    leadership_publish_seconds: float = _time(
        _TIMING.leadership_publish_seconds, "interval at which brokers repeat their leaderships to each other"
    )
    offsets_retention_seconds: float = _key(
        _TIMING.offsets_retention_seconds,
        seconds_between(1, 10 * 366 * 86_400),
        "time for which offsets of a consumer group without members are kept",
        Scope.CLUSTER,
    )
    controller_seconds: float = _time(_TIMING.controller_seconds, "interval of the controller")
    stable_seconds: float = _time(
        _TIMING.stable_seconds, "time for which a broker must run before it is given replicas and leaderships"
    )
    mark_renewal_seconds: float = _time(
        _TIMING.mark_renewal_seconds,
        "interval at which a running broker renews the mark of its data directory: an older copy of it is refused from then on",
    )
    slow_request_seconds: float = _key(
        _TIMING.slow_request_seconds,
        seconds_between(0, 86_400),
        "time from which on a request is logged as slow, an append with its phases. 0: no request is logged",
    )
    shutdown_seconds: float = _time(_TIMING.shutdown_seconds, "time limit of an orderly shutdown as a whole")

    def limits(self) -> Limits:
        """Return the process's budgets."""
        return replace(_LIMITS, **self._named_as(Limits))  # type: ignore[arg-type]  # fields of equal names and types

    def timing(self) -> Timing:
        """Return the node's times."""
        return replace(_TIMING, **self._named_as(Timing))  # type: ignore[arg-type]  # fields of equal names and types

    def host_label(self) -> str:
        """Return the label of the machine on which this node runs."""
        return self.host or socket.gethostname()

    def _named_as(self, target: type[Limits | Timing]) -> dict[str, object]:
        names = {one.name for one in fields(target)}
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name in names}


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key, for `raftmq config show`, for documents and for error messages."""

    name: str
    default: object
    meaning: str
    parse: Callable[[object], object]
    scope: Scope | None = None
    """The brokers for which it can be changed at run time. None: it is read only at the start."""


CONFIG_KEYS: Final[Mapping[str, ConfigKey]] = {
    one.name: ConfigKey(one.name, one.default, str(one.metadata[_MEANING]), one.metadata[_PARSE], one.metadata[_SCOPE])
    for one in fields(BrokerConfig)
    if one.default is not MISSING
}


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and the origin of each value."""

    config: BrokerConfig
    sources: Mapping[str, str]
    """Key → "default", "file PATH", "environment RAFTMQ_X", "--set x" or "flag --x"."""


def load_config(
    path: Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    settings: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """Combine the layers. Later layers override earlier ones.

    Args:
        path: The file. None: `raftmq.toml` in the working directory, if it exists.
        env: The environment (`os.environ`). Only names that begin with ``RAFTMQ_`` count.
        flags: Values of options on the command line. A None value was not given.
        settings: Values of ``--set`` on the command line. Options override them.

    Raises:
        ConfigError: An unknown key, a value out of range, an unreadable file, or keys that contradict each other.
    """
    layers = Dynaconf(settings_files=[], loaders=[], core_loaders=["TOML"], load_dotenv=False, environments=False)
    if path is not None and not path.is_file():
        raise ConfigError(f"there is no configuration file {path}")
    file = path or (DEFAULT_FILE if DEFAULT_FILE.is_file() else None)
    if file is not None:
        _add(layers, f"file {file}", _read_file(file))
    for name, text in (env or {}).items():
        key = name.removeprefix(ENVIRONMENT_PREFIX).lower()
        if not name.startswith(ENVIRONMENT_PREFIX) or key in FOREIGN_ENVIRONMENT:
            continue
        if key in CONFIG_KEYS or not is_service_link(name, text):
            _add(layers, f"environment {name}", {key: text})
    for key, text in (settings or {}).items():
        _add(layers, f"--set {key}", {key: text})
    for key, value in (flags or {}).items():
        if value is not None:
            _add(layers, f"flag --{key.replace('_', '-')}", {key: value})
    return _checked(layers)


def _read_file(file: Path) -> dict[str, object]:
    """Read the file by itself, so that an error message can name it."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error


def _add(layers: Dynaconf, source: str, values: Mapping[str, object]) -> None:
    for key, value in values.items():
        known = CONFIG_KEYS.get(key.lower())
        if known is None:
            raise ConfigError(f"{source}: there is no key {key!r}{suggestion(key, CONFIG_KEYS)}")
        try:
            parsed = known.parse(value)
        except ValueError as error:
            raise ConfigError(f"{source}: {known.name} = {value!r}: must be {error} ({known.meaning})") from None
        layers.set(known.name, parsed, loader_identifier=source, tomlfy=False, merge=False)


def _checked(layers: Dynaconf) -> LoadedConfig:
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for name, key in CONFIG_KEYS.items():
        if name in layers:
            sources[name] = str(get_history(layers, key=name)[-1]["identifier"])
            values[name] = key.parse(layers.get(name))  # lists come back as lists
        else:
            sources[name] = "default"
            values[name] = key.default
    config = BrokerConfig(**values)  # type: ignore[arg-type]  # parsed by the key's own parser above
    _check_together(config, sources)
    return LoadedConfig(config, sources)


def _check_together(config: BrokerConfig, sources: Mapping[str, str]) -> None:
    for name in ("listen", "peer_listen", "http_listen", "data_listen"):
        if getattr(config, name) is None:
            continue
        address = str(getattr(config, name))
        if not config.allow_insecure_remote and not is_loopback(split_address(address)[0]):
            raise ConfigError(
                f"{sources[name]}: {name} = {address!r} is open to other machines, and there is no TLS and no credentials "
                "yet: use a loopback address, or set allow_insecure_remote = true"
            )
        if config.advertise is None and split_address(address)[0] in EVERY_ADDRESS:
            raise ConfigError(
                f"{sources[name]}: {name} = {address!r} means all addresses of this machine, and others cannot connect to "
                "that: set advertise (--advertise) to the name at which they reach it"
            )
