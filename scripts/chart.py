"""Write the generated files of the Helm chart: its README, the settings in its schema, and its copies of the alert rules and the dashboards.

`values.yaml` has the defaults, and a comment of one line above each value. `values.schema.json` has the types. Both are written by hand, but
for the names of a broker's settings. `scripts.generate_docs` writes the files, and `scripts.check_generated` compares them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from raftmq.broker.base.config import CONFIG_KEYS

from scripts.dashboards import dashboards

ROOT: Final = Path(__file__).resolve().parent.parent
CHART: Final = Path("helm/raftmq")
ALERTS: Final = Path("examples/monitoring/alerts.yml")
OWN_KEYS: Final = frozenset(
    {
        "advertise",
        "allow_insecure_remote",
        "bootstrap",
        "broker_id",
        "brokers_expected",
        "cluster_id",
        "data_dir",
        "data_listen",
        "host",
        "http_listen",
        "join",
        "listen",
        "peer_advertise",
        "peer_listen",
        "rack",
        "shutdown_seconds",
    }
)
"""Settings of a broker that the chart sets itself, or that would break the cluster in every pod: `config` cannot have them."""
_COMMENT: Final = re.compile(r"( *)# (.+)")
_KEY: Final = re.compile(r"( *)(\w+):(.*)")
_HEAD: Final = """\
<!-- Written by `make docs` from values.yaml. Change values.yaml, not this page. -->

# raftmq

A Helm chart for a cluster of RaftMQ on Kubernetes 1.28 or later. [The guide](../../docs/guides/kubernetes.md) explains how to install, scale,
upgrade and repair it.

```sh
helm install raftmq helm/raftmq --set image.repository=registry.example/raftmq
```

## Values

| value | default | meaning |
|---|---|---|
"""


class Value(NamedTuple):
    """One row of the table."""

    name: str
    default: object
    meaning: str


def commented(text: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the dotted name of each key that has a comment above it, the comment, and whether keys with comments are inside.

    Raises ValueError for a comment that does not stand above a key.
    """
    rows: list[tuple[str, str]] = []
    path: list[tuple[int, str]] = []
    comment = ""
    for line in text.partition("\n\n")[2].splitlines():  # the first paragraph is about the file
        if found := _COMMENT.fullmatch(line):
            if comment:
                raise ValueError(f"two comments above one value: {line}")
            comment = found[2]
        elif found := _KEY.fullmatch(line):
            indentation = len(found[1])
            path = [*(one for one in path if one[0] < indentation), (indentation, found[2])]
            if comment:
                rows.append((".".join(name for _, name in path), comment))
            comment = ""
    if comment:
        raise ValueError(f"no value below the comment: {comment}")
    names = [name for name, _ in rows]
    for name, meaning in rows:
        yield name, meaning, any(other.startswith(f"{name}.") for other in names)


def values(text: str) -> list[Value]:
    """Return the values that a user sets, with their defaults and comments."""
    tree: Any = yaml.safe_load(text)
    rows = []
    for name, meaning, is_group in commented(text):
        default = tree
        for key in name.split("."):
            default = default[key]
        if not is_group:
            rows.append(Value(name, default, meaning))
    return rows


def readme(text: str) -> str:
    """Return the chart's README for this text of values.yaml."""
    lines = []
    for value in values(text):
        default = json.dumps(value.default).replace("|", "\\|")
        lines.append(f"| `{value.name}` | `{default}` | {value.meaning} |\n")
    return _HEAD + "".join(lines)


def schema(text: str) -> str:
    """Return the text of values.schema.json with the settings that `config` may have."""
    model: dict[str, Any] = json.loads(text)
    setting = {"$ref": "#/definitions/setting"}
    model["properties"]["config"]["properties"] = dict.fromkeys(sorted(CONFIG_KEYS.keys() - OWN_KEYS), setting)
    return json.dumps(model, indent=2) + "\n"


def generated() -> Mapping[Path, str]:
    """Return the text of each generated file."""
    chart = ROOT / CHART
    return {
        CHART / "README.md": readme((chart / "values.yaml").read_text()),
        CHART / "values.schema.json": schema((chart / "values.schema.json").read_text()),
        CHART / "files/alerts.yml": (ROOT / ALERTS).read_text(),
        **{CHART / "files/dashboards" / name: text for name, text in dashboards().items()},
    }
