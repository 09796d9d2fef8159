"""Run a real Prometheus that scrapes real brokers once a second, and ask it."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

RULES = Path(__file__).parents[3] / "examples/monitoring/alerts.yml"
WAIT_SECONDS = 60.0
RANGE = "15s"
"""The range of rates in the place of Grafana's `$__rate_interval`."""
_CONFIGURATION = """\
global:
  scrape_interval: 1s
  scrape_timeout: 900ms
  evaluation_interval: 1s
rule_files: [alerts.yml]
scrape_configs:
  - job_name: raftmq
    static_configs:
      - targets: {targets}
"""


class Sample(NamedTuple):
    """One series of a result."""

    labels: dict[str, str]
    value: float


def hasty(rules: str) -> str:
    """Return the rules with short times: nothing may wait for minutes. Expressions and labels stay as they are."""
    return re.sub(r"^(        for): [1-9]\d*[smh]$", r"\1: 2s", rules, flags=re.MULTILINE)


def evaluated(expression: str) -> str:
    """Return a panel's query as Grafana would send it with every variable at "All"."""
    return re.sub(r'"\$\w+"', '".*"', expression.replace("$__rate_interval", RANGE))


@contextlib.contextmanager
def running(directory: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """Run a Prometheus with the project's rules. Skips the test if there is none."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (Debian: prometheus)")
    directory.mkdir()
    (directory / "alerts.yml").write_text(hasty(RULES.read_text()))
    (directory / "prometheus.yml").write_text(_CONFIGURATION.format(targets=json.dumps(list(targets))))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        program,
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        prometheus = Prometheus(address)
        prometheus.wait(prometheus.is_ready, "Prometheus is ready")
        prometheus.wait(lambda: len(prometheus.query("up == 1")) == len(targets), "every broker is scraped")
        yield prometheus
    finally:
        process.kill()
        process.wait()


class Prometheus:
    """The HTTP interface of a Prometheus. Its methods block."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._began_at = time.time()

    def is_ready(self) -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=2) as answer,
        ):
            return bool(answer.status == 200)
        return False

    def query(self, expression: str) -> list[Sample]:
        """Evaluate an expression now. Raises AssertionError if Prometheus refuses it."""
        (vector,) = (self._ask("query", query=expression)["result"],)
        return [Sample(one["metric"], float(one["value"][1])) for one in vector]

    def firing(self) -> dict[str, list[dict[str, str]]]:
        """Return the labels of all alerts that fire now, by name."""
        found: dict[str, list[dict[str, str]]] = {}
        for alert in self._ask("alerts")["alerts"]:
            if alert["state"] == "firing":
                labels = dict(alert["labels"])
                found.setdefault(labels.pop("alertname"), []).append(labels)
        return found

    def fired(self, seconds: int) -> set[str]:
        """Return the names of the alerts that fired in the last seconds."""
        samples = self.query(f'count by (alertname) (max_over_time(ALERTS{{alertstate="firing"}}[{seconds}s]))')
        return {sample.labels["alertname"] for sample in samples}

    def wait_firing(self, name: str, seconds: float = WAIT_SECONDS, **labels: str) -> dict[str, str]:
        """Wait until an alert fires, one with these labels if several do. Return all its labels."""

        def is_firing() -> bool:
            return bool(self._matching(name, labels))

        self.wait(is_firing, f"{name} fires with {labels}", seconds)
        return self._matching(name, labels)[0]

    def wait_quiet(self, *names: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait until none of these alerts fires, or none at all."""
        self.wait(
            lambda: not (self.firing().keys() & set(names) if names else self.firing()),
            f"{names or 'all'} end",
            seconds,
        )

    def wait(self, condition: Callable[[], bool], meaning: str, seconds: float = WAIT_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not in time: {meaning}. Firing: {self.firing()}"
            time.sleep(0.25)

    def _matching(self, name: str, labels: dict[str, str]) -> list[dict[str, str]]:
        return [found for found in self.firing().get(name, []) if labels.items() <= found.items()]

    def _ask(self, method: str, **parameters: str) -> Any:  # the tree of a JSON document
        url = f"http://{self._address}/api/v1/{method}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None


def problem(samples: Sequence[Sample], *, unit: str, may_be_negative: bool) -> str:
    """Return why a result is not plausible. Empty: it is. A line without a value, as of a quantile of nothing, is none."""
    found = [sample for sample in samples if not math.isnan(sample.value)]
    if not found:
        return "nothing"
    for labels, value in found:
        if math.isinf(value):
            return f"{value} for {labels}"
        if value < 0 and not may_be_negative:
            return f"{value} is negative, for {labels}"
        if unit == "percentunit" and value > 2.5:  # two processors, and a little
            return f"{value:.0%} for {labels}"
    return ""
