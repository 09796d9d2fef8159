"""Check that every RaftMQ name in docs/guides/coming-from-kafka.md exists, with the arguments and defaults that the page shows.

In the RaftMQ column a name in code quotes is `Class`, `Class.attribute`, either with arguments (`argument=default` where the default is part
of the statement), or a full path below `raftmq`.
"""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
import raftmq
import typer
from raftmq.cli.main import app
from raftmq.client.producer.partitioner import PARTITIONERS
from raftmq.fsm.topic_config import CONFIG_KEYS

PAGE = Path(__file__).resolve().parents[2] / "docs/guides/coming-from-kafka.md"
OF_THE_LANGUAGE = {"async with", "async for", "anext(consumer)", "asyncio.timeout", "asyncio.timeout(0)", "await"}
CALL = re.compile(r"(?P<path>\w+(?:\.\w+)*)(?:\((?P<arguments>[^()]*)\))?\Z")
CLIENTS = {
    raftmq.Producer: {"self"},
    raftmq.Consumer: {"self", "topics"},
    raftmq.Admin: {"self", "bootstrap_servers", "client_id", "request_timeout_ms", "transport"},
}


def code_spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def rows(text: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *lines = ([cell.strip() for cell in line.strip().strip("|").split("|")] for line in table.splitlines())
        found += [dict(zip(head, line, strict=True)) for line in lines]
    return found


def our_spans() -> list[str]:
    """Return the text in code quotes from the RaftMQ column of each table."""
    return [span for row in rows(PAGE.read_text()) for span in code_spans(row["RaftMQ"])]


def found_object(path: str) -> object:
    """Return the object of a dotted name, or raise AttributeError."""
    first, *rest = path.removeprefix("raftmq.").split(".")
    if path.startswith("raftmq."):
        whole, end = path.split("."), 0
        found: object = raftmq
        for end in range(len(whole), 0, -1):
            try:
                found = import_module(".".join(whole[:end]))
                break
            except ModuleNotFoundError:
                continue
        rest = whole[end:]
    else:
        homes = (raftmq, raftmq.errors)
        found = next((getattr(home, first) for home in homes if hasattr(home, first)), None)
        if found is None:
            raise AttributeError(first)
    for name in rest:
        fields = (*getattr(found, "__dataclass_fields__", ()), *getattr(found, "__struct_fields__", ()))
        if name in fields or name in self_attributes(found):
            return None
        found = getattr(found, name)
    return found


def self_attributes(owner: object) -> set[str]:
    """Return the attributes that a class sets on itself."""
    if not inspect.isclass(owner) or owner.__module__.startswith("builtins"):
        return set()
    return set(re.findall(r"self\.([a-z]\w*)(?:: [^=]+)? = ", inspect.getsource(owner)))


def problem_of(span: str) -> str:
    """Describe the problem of a span (empty: none)."""
    if span in OF_THE_LANGUAGE:
        return ""
    if span.startswith('"'):
        return "" if ast.literal_eval(span) in PARTITIONERS else "no partitioner"
    call = CALL.match(span)
    if call is None:
        return "not a name"
    try:
        target = found_object(call["path"])
    except AttributeError as error:
        return f"nothing of this name: {error}"
    if not call["arguments"]:
        return ""
    if not callable(target):
        return "takes no arguments"
    parameters = inspect.signature(target).parameters
    for argument in call["arguments"].split(", "):
        name, _, default = argument.partition("=")
        if name not in parameters:
            return f"no argument {name}"
        if default and parameters[name].default != ast.literal_eval(default):
            return f"{name} is {parameters[name].default!r}"
    return ""


@pytest.mark.parametrize("span", sorted(set(our_spans())))
def test_a_raftmq_name_on_the_page_exists(span: str) -> None:
    assert problem_of(span) == ""


@pytest.mark.parametrize(
    ("span", "problem"),
    [
        ("Producer.sent", "nothing of this name"),
        ("Consumers", "nothing of this name"),
        ("raftmq.serializers.Avro", "nothing of this name"),
        ("Producer(acks)", "no argument acks"),
        ("Producer(linger_ms=5)", "linger_ms is 0"),
        ("Record.checksum", "nothing of this name"),
        ('"fnv1a"', "no partitioner"),
        ("Producer.send(topic, acks)", "no argument acks"),
    ],
)
def test_an_unknown_name_is_reported(span: str, problem: str) -> None:
    assert problem in problem_of(span)


def test_the_page_names_every_argument_and_method_of_the_clients() -> None:
    """A new argument or method must be compared with Kafka's, too."""
    spans = " ".join(our_spans())
    missing: list[str] = []
    for owner, known in CLIENTS.items():
        arguments = set(inspect.signature(owner).parameters) - known
        told = set(re.findall(rf"{owner.__name__}\(([^)]*)\)", spans))
        named = {argument.split("=")[0].strip() for call in told for argument in call.split(",")}
        missing += [f"{owner.__name__}({argument})" for argument in sorted(arguments - named)]
        methods = [name for name in vars(owner) if not name.startswith("_") and callable(getattr(owner, name))]
        missing += [
            f"{owner.__name__}.{name}" for name in methods if not re.search(rf"\b{owner.__name__}\.{name}\b", spans)
        ]
    for delivery in (raftmq.Delivery, raftmq.BulkDelivery):
        missing += [
            f"{delivery.__name__}.{name}"
            for name in ("add_done_callback", "failures", "result")
            if hasattr(delivery, name) and f"{delivery.__name__}.{name}" not in spans
        ]
    assert missing == []


def test_raftmq_names_in_prose_and_remarks_exist() -> None:
    """In prose and remarks a RaftMQ name begins with one of its classes or with `raftmq`."""
    text = re.sub(r"```.*?```", "", PAGE.read_text(), flags=re.DOTALL)
    remarks = [span for row in rows(text) for span in code_spans(row["what differs"])]
    prose = [span for line in text.splitlines() if not line.startswith("|") for span in code_spans(line)]
    ours = re.compile(r"(?:raftmq\.|(?:Producer|Consumer|Admin|Delivery|BulkDelivery|RaftMQError|Record)\b)")
    spans = [span for span in (*remarks, *prose) if ours.match(span)]
    assert len(spans) > 10
    assert {span: problem_of(span) for span in spans if problem_of(span)} == {}


def test_topic_settings_and_commands_exist() -> None:
    text = PAGE.read_text()
    assert {"retention.ms", "retention.bytes", "max.batch.bytes"} <= set(CONFIG_KEYS)
    assert all(f"`{key}`" in text for key in CONFIG_KEYS)
    root = typer.main.get_command(app)
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL).replace("\n", " ")
    commands = {span.removeprefix("raftmq ") for span in code_spans(prose) if span.startswith("raftmq ")}
    assert commands
    for command in commands:
        found = root
        for word in command.split():
            children = getattr(found, "commands", {})
            assert word in children, command
            found = children[word]


def test_the_programs_on_the_page_compile() -> None:
    """The test in tests/e2e/test_examples.py runs them."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    ours = [block for block in blocks if block.startswith("# RaftMQ")]
    assert len(ours) == 2
    for block in blocks:
        compile(block, str(PAGE), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
