"""``raftmq config``: show the configuration of brokers, and change settings while they run."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer
from raftmq.cli.admin_calls import run_admin
from raftmq.cli.broker import ConfigFileOption, SetOption, load
from raftmq.cli.examples import examples
from raftmq.cli.exit_codes import reported, reported_question
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.options import COUNT_MAX, DEFAULT_TIMEOUT, BootstrapOption, TimeoutOption, key_values
from raftmq.cli.output import Output, OutputOption, print_json, print_table
from raftmq.cli.topic_settings import with_milliseconds
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP

app = typer.Typer(
    help="Show and change the configuration of brokers.",
    no_args_is_help=True,
    epilog=examples("raftmq config show --broker 2", "raftmq config set log_level=debug"),
)

BrokerOption = Annotated[
    int | None,
    typer.Option(
        "--broker",
        parser=WholeNumber(1, COUNT_MAX),
        metavar="ID",
        help="The broker whose value is changed. It has precedence over the value of all brokers. Default: all brokers.",
    ),
]


@app.callback()
def config_group() -> None:
    """Show the configuration of brokers, and change settings while they run."""


@app.command(
    "show",
    short_help="Show each value and its source.",
    epilog=examples(
        "raftmq config show", "raftmq config show --config /etc/raftmq.toml -o json", "raftmq config show --broker 2"
    ),
)
@reported_question
def show(
    config: ConfigFileOption = None,
    settings: SetOption = None,
    broker: Annotated[
        int | None,
        typer.Option(
            "--broker",
            parser=WholeNumber(1, COUNT_MAX),
            metavar="ID",
            help="Ask this running broker for the values that it uses, including those that the cluster set.",
        ),
    ] = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show each value that a broker started here would use, and its source, or with --broker those of a running broker."""
    from raftmq.broker.base.value_texts import plain, shown

    if broker is None:
        from raftmq.broker.base.config import CONFIG_KEYS  # it needs raftmq[server], which --broker does not

        loaded = load(config, {}, settings)
        values = {
            name: (getattr(loaded.config, name), loaded.sources[name], key.meaning) for name, key in CONFIG_KEYS.items()
        }
    elif config is not None or settings:
        raise typer.BadParameter("use it without --config and --set: the broker has its own", param_hint="--broker")
    else:
        found = run_admin(bootstrap_servers, timeout, lambda admin: admin.describe_config(broker))
        values = {name: (one.value, one.source, one.meaning) for name, one in found.items()}
    if output is Output.JSON:
        print_json({name: {"value": plain(value), "source": source} for name, (value, source, _) in values.items()})
        return
    print_table(
        ("key", "value", "source", "meaning"),
        [(name, shown(value), source, meaning) for name, (value, source, meaning) in values.items()],
    )


@app.command(
    "list", short_help="List the settings that can be changed at run time.", epilog=examples("raftmq config list")
)
@reported_question
def list_settings(
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """List the settings that can be changed while brokers run, with the values that the cluster has for them.

    Where the cluster has none (-), each broker uses the value with which it was started, and topics use the default.
    """
    found = run_admin(bootstrap_servers, timeout, lambda admin: admin.list_config())
    if output is Output.JSON:
        print_json([dataclasses.asdict(one) for one in found])
        return
    print_table(
        ("key", "all brokers", "one broker", "can be set for", "meaning"),
        [
            (
                one.key,
                "-" if one.value is None else one.value,
                " ".join(f"{broker_id}:{value}" for broker_id, value in one.broker_values.items()) or "-",
                one.scope,
                one.meaning,
            )
            for one in found
        ],
    )


@app.command(
    "set",
    short_help="Change settings while brokers run.",
    epilog=examples(
        "raftmq config set log_level=debug --broker 2",
        "raftmq config set retention.ms=3d offsets_retention_seconds=14d",
    ),
)
@reported
def set_settings(
    settings: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="Settings and their new values.", show_default=False)
    ],
    broker: BrokerOption = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Change settings of all brokers or of one, without a restart. Brokers that start or join later follow them, too.

    The cluster's value for a broker has precedence over its value for all brokers, and both have precedence over the
    command line, the environment and the file with which a broker was started.
    """
    values = with_milliseconds(key_values(settings, "KEY=VALUE"))
    run_admin(bootstrap_servers, timeout, lambda admin: admin.alter_config(values, broker_id=broker))
    _print_change(output, list(values), broker, "set")


@app.command(
    "unset",
    short_help="Remove settings that were changed while brokers ran.",
    epilog=examples("raftmq config unset log_level", "raftmq config unset log_level --broker 2"),
)
@reported
def unset_settings(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Settings to remove.", show_default=False)],
    broker: BrokerOption = None,
    bootstrap_servers: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    output: OutputOption = Output.TEXT,
) -> None:
    """Remove settings of all brokers or of one. Each is then taken from the next source in the order of precedence."""
    run_admin(bootstrap_servers, timeout, lambda admin: admin.alter_config(unset=keys, broker_id=broker))
    _print_change(output, keys, broker, "unset")


def _print_change(output: Output, keys: list[str], broker: int | None, result: str) -> None:
    if output is Output.JSON:
        print_json({"keys": keys, "broker_id": broker, "result": result})
    else:
        print(f"{', '.join(keys)} {result} for {'all brokers' if broker is None else f'broker {broker}'}")
