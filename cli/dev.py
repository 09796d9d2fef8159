"""``raftmq dev``: run a cluster on this machine, in the foreground."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from raftmq.cli.exit_codes import CommandError, ExitCode, print_error, reported
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.output import Output, OutputOption, counted, print_json, print_table
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from raftmq.testing import LocalCluster, LocalClusterError

DEFAULT_BROKERS = 3
DEFAULT_PORT = 9400
BROKERS_MAX = 50
"""Maximum number of processes on one machine. More would only compete for its cores and its disk."""
PORT_MAX = 65_000
"""Leaves room for the ports of the next brokers."""
LOOK_SECONDS = 0.5
"""Interval at which ended brokers are noticed."""


@reported
def dev(
    brokers: Annotated[
        int | None,
        typer.Option(
            "--brokers",
            "-n",
            parser=WholeNumber(1, BROKERS_MAX),
            metavar="N",
            help="Number of brokers. Default: 3, or the number in --data-dir.",
            show_default=False,
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            "-d",
            file_okay=False,
            readable=False,
            help="Directory in which the data is kept for later runs. Default: a temporary directory.",
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            "--port",
            parser=WholeNumber(0, PORT_MAX),
            metavar="PORT",
            help="Client port of broker 1. Each further broker uses a port 10 higher. A port in use is replaced by a free one; 0 means any free ports.",
        ),
    ] = DEFAULT_PORT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Run a cluster on this machine until Ctrl-C or SIGTERM, for trials and development.

    Each broker is a process of its own, with its own data, ports and host label. With --data-dir, the next run finds
    topics and records again. Do not use it in production: a failure of the machine affects every replica.
    """
    from raftmq.cluster_addresses import load_addresses
    from raftmq.testing import LocalCluster, LocalClusterError

    if data_dir is not None and (data_dir / "node.mdb").exists():
        raise typer.BadParameter(
            f"{data_dir} is the data directory of one broker: raftmq broker start --data-dir {data_dir}",
            param_hint="--data-dir",
        )
    count = brokers or (len(load_addresses(data_dir)) if data_dir is not None else 0) or DEFAULT_BROKERS
    end_like_ctrl_c()
    cluster = LocalCluster(count, directory=data_dir, first_port=port)
    try:
        if sys.stderr.isatty():
            print(f"starting {counted(count, 'broker')}…", file=sys.stderr)
        cluster.start()
        try:
            print_cluster(cluster, output, is_temporary=data_dir is None)
            watch(cluster)
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                print("\nstopping; Ctrl-C again kills", file=sys.stderr)
            cluster.stop_all()
    except LocalClusterError as error:
        raise CommandError(in_one_sentence(error), ExitCode.DEFECT) from None
    finally:
        cluster.close()


def end_like_ctrl_c() -> None:
    """End the cluster on SIGTERM as on Ctrl-C, and also when the terminal closes, unless `nohup` ignores that."""
    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, interrupt)


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal like Ctrl-C."""
    raise KeyboardInterrupt


def in_one_sentence(error: LocalClusterError) -> str:
    """Return the error and the last log line of the broker concerned, as one sentence."""
    head, *log = str(error).splitlines()
    said = [line for line in log if line.strip() and not line.startswith("---")]
    return f"{head}: {said[-1].removeprefix('raftmq: ')}" if said else head


def print_cluster(cluster: LocalCluster, output: Output, *, is_temporary: bool) -> None:
    """Print the addresses and directories of the brokers, and commands to try."""
    rows = [
        (n, cluster.pid(n), cluster.address(n), f"http://{cluster.http_address(n)}", cluster.log_path(n))
        for n in cluster.broker_ids
    ]
    if output is Output.JSON:
        print_json(
            {
                "event": "cluster_ready",
                "bootstrap_servers": cluster.bootstrap_servers,
                "directory": str(cluster.directory),
                "is_temporary": is_temporary,
                "brokers": [
                    {"broker_id": n, "pid": pid, "address": address, "http": http, "log": str(log)}
                    for n, pid, address, http, log in rows
                ],
            }
        )
        sys.stdout.flush()
        return
    is_one = len(rows) == 1
    print(
        f"{counted(len(rows), 'broker')} {'is' if is_one else 'are'} ready; Ctrl-C stops {'it' if is_one else 'them'}\n"
    )
    print_table(("broker", "process", "clients", "http", "log"), rows)
    print(f"\ndata: {cluster.directory}{' (temporary: removed when the cluster stops)' if is_temporary else ''}")
    print("\ntry, in another terminal:")
    if cluster.address(1) != DEFAULT_BOOTSTRAP:
        print(f"  export RAFTMQ_BOOTSTRAP_SERVERS={cluster.bootstrap_servers}")
    print("  raftmq topic create greetings --if-not-exists")
    print("  echo hello | raftmq produce greetings")
    print("  raftmq consume greetings --from-beginning --exit-at-end", flush=True)


def watch(cluster: LocalCluster) -> None:
    """Report brokers that end by themselves, until a signal arrives. Raises `CommandError` when none is left."""
    ended: set[int] = set()
    never = threading.Event()
    while len(ended) < len(cluster.broker_ids):
        never.wait(LOOK_SECONDS)
        for broker_id in cluster.broker_ids:
            if broker_id not in ended and not cluster.is_running(broker_id):
                ended.add(broker_id)
                print_error(f"broker {broker_id} has ended; see {cluster.log_path(broker_id)}")
    raise CommandError("every broker has ended", ExitCode.DEFECT)
