"""``raftmq broker``: run a broker in this process."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.examples import examples
from raftmq.cli.exit_codes import DEBUG_VARIABLE, reported
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.options import COUNT_MAX, key_values

if TYPE_CHECKING:
    from raftmq.broker.base.config import LoadedConfig

app = typer.Typer(
    help="Run a broker.", no_args_is_help=True, epilog=examples("raftmq broker start --bootstrap --data-dir ./data")
)

ConfigFileOption = Annotated[
    Path | None,
    typer.Option(
        "--config", dir_okay=False, help="Configuration file. Default: raftmq.toml in this folder, if it exists."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set any configuration key. Repeat it for several keys."),
]


def load(file: Path | None, flags: Mapping[str, object], settings: list[str] | None) -> LoadedConfig:
    """Return the configuration from all sources. An invalid value is a usage error."""
    from raftmq.broker.base.config import ConfigError, load_config

    environment = {name: value for name, value in os.environ.items() if name != DEBUG_VARIABLE}
    try:
        return load_config(file, environment, flags, key_values(settings, "--set"))
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None


@app.callback()
def broker_group() -> None:
    """Run a broker."""


@app.command(
    "start",
    epilog=examples(
        "raftmq broker start --bootstrap --data-dir /var/lib/raftmq",
        "raftmq broker start --join 10.0.0.1:9401 --data-dir /var/lib/raftmq",
        "raftmq broker start --config /etc/raftmq.toml --set log_level=debug",
    ),
)
@reported
def start(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            "-d",
            file_okay=False,
            readable=False,
            help="Directory of the broker's data. Default: data_dir of the configuration.",
        ),
    ] = None,
    bootstrap: Annotated[
        bool,
        typer.Option(
            "--bootstrap",
            help="Form a new cluster of one broker, once in a cluster's life. With --join it is refused if one of those brokers belongs to a cluster.",
        ),
    ] = False,
    join: Annotated[
        str | None,
        typer.Option(
            "--join", metavar="HOST:PORT[,HOST:PORT...]", help="Join the cluster of these brokers (peer addresses)."
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Address for clients; port 0 means any free port. Default: 127.0.0.1:9400.",
        ),
    ] = None,
    peer_listen: Annotated[
        str | None,
        typer.Option("--peer-listen", metavar="HOST:PORT", help="Address for other brokers. Default: 127.0.0.1:9401."),
    ] = None,
    http_listen: Annotated[
        str | None,
        typer.Option(
            "--http-listen",
            metavar="HOST:PORT",
            help="Address for /metrics, /healthz and /readyz. Default: 127.0.0.1:9402.",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise", metavar="HOST", help="Host name under which clients and brokers reach this broker."
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            metavar="LABEL",
            help="Label of the machine: replicas of a partition are kept on different machines. Default: its host name.",
        ),
    ] = None,
    rack: Annotated[str | None, typer.Option("--rack", metavar="LABEL", help="Label of the rack or zone.")] = None,
    broker_id: Annotated[
        int | None,
        typer.Option(
            "--broker-id",
            parser=WholeNumber(0, COUNT_MAX),
            metavar="N",
            help="Id of this broker. Without it the cluster assigns one.",
        ),
    ] = None,
    replace_lost: Annotated[
        bool,
        typer.Option(
            "--replace-lost",
            help="With --broker-id: replace the broker of that id, whose disk is permanently lost, even if a partition then has no majority.",
        ),
    ] = False,
    allow_insecure_remote: Annotated[
        bool,
        typer.Option(
            "--allow-insecure-remote",
            help="Listen to other machines although encryption and authentication do not exist yet.",
        ),
    ] = False,
    settings: SetOption = None,
    config: ConfigFileOption = None,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    Start the first broker of a cluster with --bootstrap and every other broker with --join. A broker that belongs to a
    cluster needs neither. After a disk replacement, start with --join and the broker's --broker-id. When it serves, it
    prints one line of JSON with its addresses on standard output. Its log goes to standard error. Options override
    RAFTMQ_* variables, and variables override the file.
    """
    flags = {
        "data_dir": data_dir,
        "bootstrap": bootstrap or None,
        "join": join,
        "listen": listen,
        "peer_listen": peer_listen,
        "http_listen": http_listen,
        "advertise": advertise,
        "host": host,
        "rack": rack,
        "broker_id": broker_id,
        "replace_lost": replace_lost or None,
        "allow_insecure_remote": allow_insecure_remote or None,
    }
    loaded = load(config, flags, settings)
    if join is not None and not loaded.config.join:
        raise typer.BadParameter("give at least one HOST:PORT", param_hint="--join")
    directory = loaded.config.data_dir
    is_new = not any((directory / name).exists() for name in ("node.mdb", "groups"))
    if is_new and not (loaded.config.bootstrap or loaded.config.join):
        raise typer.BadParameter(
            f"{directory} belongs to no cluster: give --bootstrap to form a new cluster, or --join HOST:PORT, the peer address of a broker, to join one. If this broker's "
            "disk was replaced, give --join and its previous --broker-id"
        )

    raise SystemExit(broker_program()(loaded))


def broker_program() -> Callable[[LoadedConfig], int]:
    """Import `run_broker` without 0.3 s of needless work: the import of rich, with which structlog colors tracebacks, and the search for garbage."""
    gc.disable()
    sys.modules["rich"] = None  # type: ignore[assignment]  # its import fails
    try:
        from raftmq.broker.main import run_broker
    finally:
        del sys.modules["rich"]
        gc.enable()
    return run_broker
