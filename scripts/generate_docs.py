"""Write the reference pages from the code, so that they cannot disagree with it. Usage: python -m scripts.generate_docs [DIRECTORY]

errors.md from raftmq.errors · protocol.md from queue.proto · cli.md from the command tree · configuration.md from broker/base/config.py,
fsm/topic_config.py and broker/base/limits.py · metrics.md from broker/base/metric_catalog.py and client/base/metrics.py · logs.md from
broker/base/log_events.py, client/base/logs.py and the calls in the code. Their docstrings are the text, and this file only arranges it.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from raftmq import errors
from raftmq.broker.base import limits, log_events
from raftmq.broker.base.config import CONFIG_KEYS, ConfigKey
from raftmq.broker.base.metric_catalog import SECTIONS
from raftmq.broker.base.readiness import STARTING, Reason
from raftmq.broker.base.runtime_settings import RUNTIME_SETTINGS
from raftmq.broker.base.value_texts import shown
from raftmq.cli.exit_codes import ExitCode
from raftmq.cli.main import app
from raftmq.client.base import logs as client_logs
from raftmq.client.base import metrics as client_metrics
from raftmq.fsm.topic_config import CONFIG_KEYS as TOPIC_KEYS

from scripts import chart, dashboards

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = Path("docs/reference")
Command = Any  # typer has its own copy of click, earlier versions use the real one: the type has no common name
EXAMPLE = (
    'data_dir = "/var/lib/raftmq"',
    'listen = "127.0.0.1:9400"',
    'join = "127.0.0.1:9411,127.0.0.1:9421"',
    'host = "one"',
)
PRECEDENCE = (
    "Settings that the cluster has for one broker (`raftmq config set --broker`) override those that it has for all brokers (`raftmq config "
    "set`), which override flags of `raftmq broker start` (or `--set KEY=VALUE`), which override `RAFTMQ_KEY` in the environment, which "
    "overrides `raftmq.toml`."
)
LEVELS = ("debug", "info", "warning", "error", "critical", "exception")
HEAD = "<!-- Written by `make docs` from the code. Change the code, not this page. -->\n\n"


def attribute_docs(source: str) -> dict[tuple[str, str], tuple[str, str, str]]:
    """Return (class, attribute) → (type, default, docstring) of every annotated class attribute, in order."""
    found: dict[tuple[str, str], tuple[str, str, str]] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
            name = kind = ""
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                name, kind = statement.target.id, ast.unparse(statement.annotation)
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                name, kind = statement.targets[0].id, ""
            if not name or not isinstance(statement, ast.AnnAssign | ast.Assign):
                continue
            default = ast.unparse(statement.value) if statement.value is not None else ""
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = " ".join(str(following.value.value).split())
            found[node.name, name] = (kind, default, text)
    return found


def cell(text: str) -> str:
    """Return the text in a form that a table cell can hold."""
    return " ".join(text.split()).replace("|", "\\|")


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    return f"{text[0].upper()}{text[1:]}." if text else ""


def subclasses(root: type[errors.RaftMQError]) -> Iterator[type[errors.RaftMQError]]:
    """Yield every class below `root`, each before its own subclasses, in the order of the source."""
    for child in root.__subclasses__():
        yield child
        yield from subclasses(child)


def errors_page() -> str:
    """Return the page with the table of exceptions."""
    lines = ["# Errors", "", cell(inspect.getdoc(errors.RaftMQError) or ""), ""]
    lines += [
        "| exception | base class | code | retriable | may have been applied | meaning and remedy |",
        "|---|---|---|---|---|---|",
    ]
    for kind in subclasses(errors.RaftMQError):
        code = f"{kind.code.name} ({kind.code.value})" if kind.code is not None else ""
        unknown = "yes" if kind.outcome is errors.Outcome.UNKNOWN else "no"
        again = "yes" if kind.retriable else "no"
        doc = cell(f"{(inspect.getdoc(kind) or '').split(chr(10) * 2)[0]} {sentence(kind.advice)}")
        lines.append(f"| `{kind.__name__}` | `{kind.__bases__[0].__name__}` | {code} | {again} | {unknown} | {doc} |")
    lines += [
        "",
        "Codes are numbers of the protocol and are never reused. Codes without an exception are not sent to clients.",
    ]
    return "\n".join(lines) + "\n"


def protocol_page() -> str:
    """Return the page that shows queue.proto, section by section."""
    text = (ROOT / "queue.proto").read_text()
    head, *sections = re.split(r"^// -{20,} (.+)$\n", text, flags=re.MULTILINE)
    intro = " ".join(line.lstrip("/ ") for line in head.splitlines() if line.startswith("//"))
    lines = [
        "# The client protocol",
        "",
        "The client protocol is gRPC with the package `raftmq.v1`. Reflection and health checks are enabled.",
        "",
        intro,
        "",
    ]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        lines += [f"## {title.strip().capitalize()}", "", "```proto", body.strip(), "```", ""]
    return "\n".join(lines)


def cli_page() -> str:
    """Return the page of all commands with their options, and of the exit codes."""
    lines = [
        "# The command line",
        "",
        "Client commands find the cluster by `--bootstrap-servers` or `RAFTMQ_BOOTSTRAP_SERVERS`.",
        "",
    ]
    root = typer.main.get_command(app)
    for path, command in walk("raftmq", root):
        shown_examples = (command.epilog or "").removeprefix("\b\nExamples:\n")
        lines += [f"## `{path}`", "", inspect.cleandoc(command.help or ""), ""]
        lines += ["```sh", *(line.strip() for line in shown_examples.splitlines()), "```", ""]
        parameters = [p for p in command.params if p.name not in ("help", "install_completion", "show_completion")]
        if parameters:
            lines += ["| parameter | accepts | default | meaning |", "|---|---|---|---|"]
        for parameter in parameters:
            names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
            is_argument = parameter.param_type_name == "argument"
            shown = f"`{(parameter.name or '').upper()}`" if is_argument else names
            default = (
                ""
                if parameter.default is None or parameter.required or callable(parameter.default)
                else f"`{plain(parameter.default)}`"
            )
            lines.append(
                f"| {shown} | {cell(taken(parameter))} | {default} | {cell(getattr(parameter, 'help', '') or '')} |"
            )
        lines.append("")
    lines += ["## Exit codes", "", "| code | name | meaning |", "|---|---|---|"]
    docs = attribute_docs(inspect.getsource(sys.modules[ExitCode.__module__]))
    lines += [f"| {code.value} | {code.name} | {cell(docs['ExitCode', code.name][2])} |" for code in ExitCode]
    return "\n".join(lines) + "\n"


def taken(parameter: Any) -> str:  # noqa: ANN401 (a parameter of typer's own copy of click)
    """Return the values that a parameter accepts: its limits or its choices, where it has any."""
    described = parameter.type_descriptor
    limits: str = getattr(described.parameter_info.parser, "limits", "")
    return limits or ", ".join(f"`{plain(choice)}`" for choice in described.choices or ())


def plain(value: object) -> str:
    """Return a default as a user would type it."""
    return str(getattr(value, "value", value)) if not isinstance(value, bool) else str(value).lower()


def walk(path: str, command: Command) -> Iterator[tuple[str, Command]]:
    """Yield every command below, depth first, with the words that call it."""
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name in children:
        yield from walk(f"{path} {name}", children[name])


def configuration_page() -> str:
    """Return the page of the broker's settings, the settings of topics, and the broker's bounds and times."""
    lines = ["# Configuration of a broker", ""]
    lines += [
        PRECEDENCE,
        "Times are in seconds unless they have a unit (`500ms`, `20s`, `5m`, `2h`, `7d`). Sizes are in bytes unless they have one (`512MiB`).",
        "",
    ]
    lines += ["| key | accepts | default | meaning |", "|---|---|---|---|"]
    for key in CONFIG_KEYS.values():
        lines.append(
            f"| `{key.name}` | {cell(accepted(key))} | {default_of(key.name, shown(key.default))} | {cell(key.meaning)} |"
        )
    lines += [
        "",
        "An example of a `raftmq.toml`, passed with `--config` or found in the working directory:",
        "",
        "```toml",
        *EXAMPLE,
        "```",
    ]
    lines += ["", "## Settings that can be changed at run time", ""]
    lines += [
        "Set them with `raftmq config set KEY=VALUE` or `Admin.alter_config` ([how](../guides/operations.md#change-settings-at-run-time)).",
        "",
        "| key | for | accepts | default | meaning |",
        "|---|---|---|---|---|",
    ]
    for changeable in RUNTIME_SETTINGS.values():
        expected = (changeable.expected("?") or "").partition(" (such as")[0]
        lines.append(
            f"| `{changeable.name}` | {changeable.scope.value} | {cell(expected)} | `{changeable.default}` | {cell(changeable.meaning)} |"
        )
    lines += ["", "## Settings of a topic", ""]
    lines += [
        "Set them with `raftmq topic create --config KEY=VALUE`, `raftmq topic alter` or `Admin.create_topic(config=…)`.",
        "",
    ]
    lines += ["| key | kinds of topics | accepts | default | meaning |", "|---|---|---|---|---|"]
    for setting in TOPIC_KEYS.values():
        lines.append(
            f"| `{setting.name}` | {', '.join(setting.kinds)} | {cell(setting.accepts)} | "
            f"{default_of(setting.name, setting.default)} | {cell(setting.meaning)} |"
        )
    lines += ["", *module_tables(limits)]
    return "\n".join(lines)


def default_of(name: str, value: str) -> str:
    """Return the cell of a default: empty if there is none, and with a unit if it is a size."""
    if value in ("", "-"):
        return ""
    number = re.sub(r"_(?=\d)", "", value).replace("MIB", "1048576").replace("KIB", "1024")
    factors = [int(factor) for factor in number.split(" * ") if factor.isdigit()]
    size = math.prod(factors)
    if "bytes" not in name or len(factors) != number.count(" * ") + 1 or not size or size % 1024:
        return f"`{value}`"
    units = next(
        (size // unit, suffix)
        for unit, suffix in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
        if not size % unit
    )
    return f"`{value}` ({units[0]} {units[1]})" if value.isdigit() else f"{units[0]} {units[1]}"


def accepted(key: ConfigKey) -> str:
    """Return the values that a key accepts, in the words of its error message. Empty if it accepts any text."""
    try:
        key.parse("?")
    except ValueError as error:
        return str(error).partition(" (such as")[0]
    return ""


def module_tables(module: ModuleType) -> list[str]:
    """Return one table for each dataclass of a module."""
    lines: list[str] = []
    current = ""
    for (owner, name), (kind, default, text) in attribute_docs(inspect.getsource(module)).items():
        if not kind:
            continue
        if owner != current:
            current = owner
            described = cell((inspect.getdoc(getattr(module, owner)) or "").split("\n\n")[0])
            lines += [
                "",
                f"## `{owner}`",
                "",
                described,
                "",
                "| name | type | default | meaning |",
                "|---|---|---|---|",
            ]
        shown = default_of(name, default) if default else "required"
        lines.append(f"| `{name}` | `{cell(kind)}` | {shown} | {cell(text)} |")
    return [*lines[1:], ""]


def metrics_page() -> str:
    """Return the page of the broker's metrics, its reasons for not being ready, and the client's counters."""
    lines = [
        "# Metrics",
        "",
        (
            "A broker's `/metrics` (port 9402) is in the text format of Prometheus. [Monitoring](../guides/monitoring.md) explains which "
            "metrics to watch and which alerts to set."
        ),
        "",
        (
            "Labels are bounded. Only the metrics of partitions grow with use: they have one series for every replica on the broker, "
            "of which there are at most `partitions_max`. If that is too many, drop them when scraping (`metric_relabel_configs` on "
            "`raftmq_partition_.*`). Nothing else needs them. The page also has the `process_…` (CPU, memory, file descriptors) and "
            "`python_gc_…` metrics of every Python program. Metrics of groups and partitions appear as soon as the broker has the "
            "cluster's metadata."
        ),
        "",
    ]
    for title, metrics in SECTIONS.items():
        lines += [f"## {title}", "", "| metric | type | labels | meaning |", "|---|---|---|---|"]
        for metric in metrics:
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {cell(metric.text)} |")
        lines.append("")
    docs = attribute_docs(inspect.getsource(sys.modules["raftmq.broker.base.readiness"]))
    lines += ["## Reasons why a broker is not ready", ""]
    lines += [
        'These are the codes of `/readyz` and the values of `raftmq_not_ready{reason}`. Reasons marked "yes" keep a start from completing.',
        "",
        "| reason | at the start | meaning |",
        "|---|---|---|",
    ]
    for reason in Reason:
        is_starting = "yes" if reason in STARTING else ""
        lines.append(f"| `{reason.value}` | {is_starting} | {cell(docs['Reason', reason.name][2])} |")
    lines += ["", "## In a program", ""]
    lines += [
        "`Producer.metrics()`, `Consumer.metrics()` and `Worker.metrics()` return the counters of a client.",
        "",
    ]
    docs = attribute_docs(inspect.getsource(client_metrics))
    for owner in ("ProducerMetrics", "ConsumerMetrics", "WorkerMetrics"):
        lines += [f"### `{owner}`", "", "| field | type | meaning |", "|---|---|---|"]
        lines += [
            f"| `{name}` | `{kind}` | {cell(text)} |" for (of, name), (kind, _, text) in docs.items() if of == owner
        ]
        lines.append("")
    return "\n".join(lines)


def logged_events(folders: Iterable[str]) -> dict[str, tuple[set[str], list[str]]]:
    """Return event → (levels, fields) of every call of a module's `log` in these folders.

    An event is the first argument, a constant. Fields are keywords or, in the SDK's texts, the names before ``=``.
    """
    found: dict[str, tuple[set[str], list[str]]] = {}
    for path in (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
                continue
            if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "log" and node.args):
                continue
            text = node.args[0]
            if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
                raise SystemExit(f"{path}:{node.lineno}: the name of an event must be a constant")
            event, _, rest = text.value.partition(" ")
            levels, fields = found.setdefault(event, (set(), []))
            levels.add("error" if node.func.attr == "exception" else node.func.attr)
            names = [keyword.arg or "" for keyword in node.keywords] + re.findall(r"(\w+)=", rest)
            names += ["exc_info"] if node.func.attr == "exception" else []
            fields += [name for name in names if name not in fields]
    return found


def logs_page() -> str:
    """Return the page of the broker's events, their fields, and the SDK's events."""
    broker = logged_events(("broker", "storage"))
    broker["library_message"] = ({"warning"}, ["library", "message"])
    lines = [
        "# Logs",
        "",
        (
            "A broker writes one event per line to standard error: JSON, or coloured text when standard error is a terminal. "
            "`log_level` (debug, info, warning, error) is the minimum level that is logged. Every line has `event`, `level` and "
            "`timestamp` (UTC). DEBUG is for single messages, INFO for changes of state, WARNING for degraded states that recover by "
            "themselves, and ERROR for conditions that someone must act on. Nothing is logged per record. Payloads, keys and "
            "credentials are never logged."
        ),
        "",
        "A lasting condition is logged when it begins, and then about once a minute.",
        "",
        *events_table(broker, log_events.EVENTS),
        "## Fields",
        "",
        "| field | meaning |",
        "|---|---|",
        *(f"| `{name}` | {cell(text)} |" for name, text in log_events.FIELDS.items()),
        "",
        "## The SDK",
        "",
        (
            "The SDK logs to the standard library's logger `raftmq`, as `event key=value …`. It writes nothing unless the program adds a "
            "handler:"
        ),
        "",
        "```python",
        "import logging",
        "",
        'logging.basicConfig(level=logging.INFO)  # or for the SDK alone: logging.getLogger("raftmq").setLevel(logging.DEBUG)',
        "```",
        "",
        *events_table(logged_events(("client", "spark")), client_logs.EVENTS),
    ]
    return "\n".join(lines)


def events_table(found: Mapping[str, tuple[set[str], list[str]]], meanings: Mapping[str, str]) -> list[str]:
    """Return the table of events, in the order of their meanings."""
    lines = ["| event | level | fields | meaning |", "|---|---|---|---|"]
    for event, meaning in meanings.items():
        levels, fields = found[event]
        names = ", ".join(f"`{name}`" for name in fields)
        lines.append(f"| `{event}` | {', '.join(sorted(levels))} | {names} | {cell(meaning)} |")
    return [*lines, ""]


def write_all(directory: Path) -> list[Path]:
    """Write every page and return the paths."""
    directory.mkdir(parents=True, exist_ok=True)
    pages = {
        "errors": errors_page,
        "protocol": protocol_page,
        "cli": cli_page,
        "configuration": configuration_page,
        "metrics": metrics_page,
        "logs": logs_page,
    }
    written = []
    for name, page in pages.items():
        path = directory / f"{name}.md"
        path.write_text(HEAD + page().rstrip() + "\n")
        written.append(path)
    return written


def main() -> None:
    """Write the pages into the given directory, or into docs/reference."""
    written = write_all(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / REFERENCE)
    if len(sys.argv) == 1:
        for file, text in {**dashboards.generated(), **chart.generated()}.items():
            (ROOT / file).write_text(text)
            written.append(ROOT / file)
    for path in written:
        print(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


if __name__ == "__main__":
    main()
