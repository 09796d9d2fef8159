"""The parts of RaftMQ that need packages which a client does not, and the extras that install them.

``pip install raftmq`` installs the packages that the SDK imports. Everything else is an extra of the package. Must import only the standard
library, because it runs where packages are missing.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final, Literal

Extra = Literal["cli", "otel", "server", "spark", "taskiq"]

MODULES: Final[dict[Extra, tuple[str, ...]]] = {
    "cli": ("rich", "typer"),
    "otel": ("opentelemetry.exporter.otlp.proto.grpc", "opentelemetry.sdk", "opentelemetry.trace"),
    "server": (
        "cronsim",
        "dynaconf",
        "google.rpc",
        "grpc_health",
        "grpc_reflection",
        "lmdb",
        "prometheus_client",
        "re2",
        "rich",
        "starlette",
        "structlog",
        "typer",
        "tzdata",
        "uvicorn",
        *(("uvloop",) if sys.platform != "win32" else ()),
    ),
    "spark": ("pyarrow", "pyspark"),
    "taskiq": ("taskiq",),
}
"""The modules that each extra in ``pyproject.toml`` makes importable."""


class MissingExtraError(ImportError):
    """Packages that a part of RaftMQ needs are not installed. The message names them and the command that installs them."""


def missing_modules(extra: Extra) -> list[str]:
    """Return the modules of an extra that cannot be found. Imports none of them, but the packages around them."""
    return [name for name in MODULES[extra] if not _is_found(name)]


def _is_found(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False


def require(extra: Extra, user: str) -> None:
    """Check that an extra is installed.

    Args:
        extra: the extra that is needed.
        user: the part of RaftMQ that needs it, which begins the error text.

    Raises:
        MissingExtraError: the extra is not installed, or only in part.
    """
    missing = missing_modules(extra)
    if missing:
        raise MissingExtraError(
            f"{user} needs packages that are not installed ({', '.join(missing)}): pip install 'raftmq[{extra}]'"
        )
