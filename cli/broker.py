"""``raftmq broker``: run a broker in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from raftmq.cli.exit_codes import reported

app = typer.Typer(help="Run a broker.", no_args_is_help=True)

DEFAULT_LISTEN = "127.0.0.1:9400"
DEFAULT_PEER_LISTEN = "127.0.0.1:9401"
DEFAULT_HTTP_LISTEN = "127.0.0.1:9402"


def parse_seeds(join: str | None) -> tuple[str, ...]:
    """``HOST:PORT,HOST:PORT`` as a tuple; an entry that is no address is a usage error."""
    if join is None:
        return ()
    seeds = tuple(part.strip() for part in join.split(",") if part.strip())
    for seed in seeds:
        check_address(seed, "--join")
    if not seeds:
        raise typer.BadParameter("give at least one HOST:PORT", param_hint="--join")
    return seeds


def check_address(address: str, option: str) -> str:
    """`address` if it is ``HOST:PORT`` (an IPv6 host in brackets); a usage error otherwise."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise typer.BadParameter(f"{address!r} is not HOST:PORT", param_hint=option)
    return address


@app.callback()
def group() -> None:
    """Run a broker."""


@app.command("start")
@reported
def start(
    data_dir: Annotated[
        Path,
        typer.Option(
            "--data-dir", "-d", file_okay=False, help="Where the broker keeps everything.", show_default=False
        ),
    ],
    bootstrap: Annotated[
        bool, typer.Option("--bootstrap", help="Form a new cluster of one; once in a cluster's life.")
    ] = False,
    join: Annotated[
        str | None,
        typer.Option(
            "--join", metavar="HOST:PORT[,HOST:PORT…]", help="Join the cluster of these brokers (client addresses)."
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where clients connect; port 0 takes a free one.")
    ] = DEFAULT_LISTEN,
    peer_listen: Annotated[
        str, typer.Option("--peer-listen", metavar="HOST:PORT", help="Where other brokers connect.")
    ] = DEFAULT_PEER_LISTEN,
    http_listen: Annotated[
        str, typer.Option("--http-listen", metavar="HOST:PORT", help="Where /metrics, /healthz and /readyz are.")
    ] = DEFAULT_HTTP_LISTEN,
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise", metavar="HOST", help="The host name that clients and brokers reach this broker by."
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            help="Label of the machine: replicas of a partition are kept on different ones. Default: its name.",
        ),
    ] = None,
    rack: Annotated[str, typer.Option("--rack", help="Label of the rack or zone.")] = "",
    node_id: Annotated[int, typer.Option("--node-id", min=0, help="This broker's id; 0 lets the cluster choose.")] = 0,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    The first broker of a cluster starts with --bootstrap, every other with --join. A broker that belongs to a cluster needs neither.
    When it serves, it prints one line of JSON with its addresses on standard output; its log goes to standard error.
    """
    if bootstrap and join is not None:
        raise typer.BadParameter("give --bootstrap or --join, not both: a cluster forms once")
    seeds = parse_seeds(join)
    check_address(listen, "--listen")
    check_address(peer_listen, "--peer-listen")
    check_address(http_listen, "--http-listen")

    from raftmq.broker.config import BrokerConfig
    from raftmq.broker.main import run_broker

    config = BrokerConfig(
        data_dir=data_dir,
        listen=listen,
        peer_listen=peer_listen,
        http_listen=http_listen,
        advertise=advertise,
        host=host,
        rack=rack,
        node_id=node_id,
        bootstrap=bootstrap,
        join=seeds,
    )
    raise SystemExit(run_broker(config))
