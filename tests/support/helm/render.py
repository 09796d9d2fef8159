"""Render the chart with each set of values into tests/helm/golden. It needs helm on the PATH. Usage: python -m tests.support.helm.render"""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "raftmq"
VALUES = {path.stem: path for path in sorted((ROOT / "tests/helm/values").glob("*.yaml"))}
GOLDEN = ROOT / "tests" / "helm" / "golden"
NAMESPACE = "queues"


def helm(command: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command of helm for a version of Kubernetes, without any network."""
    line = ["helm", command, *map(str, words), "--kube-version", "1.31.0"]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def rendered(name: str) -> str:
    """Return the objects of the chart with a set of values."""
    done = helm("template", release_of(name), CHART, "--namespace", NAMESPACE, "--values", VALUES[name])
    assert done.returncode == 0, done.stderr
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


def release_of(name: str) -> str:
    """Return the name of a set's release: one contains the chart's name, and another does not."""
    return "shop" if name == "zones" else "raftmq"


def golden(name: str) -> Path:
    """Return the file with the objects of a set of values."""
    return GOLDEN / f"{name}.yaml"


def main() -> None:
    """Write all golden files."""
    for name in VALUES:
        golden(name).write_text(rendered(name))


if __name__ == "__main__":
    main()
