"""Which parts of RaftMQ need packages that a client does not, and what to install when they are missing.

``pip install raftmq`` brings what the SDK imports. Everything else is an extra of the package. Must import nothing but the standard
library: it runs where packages are missing.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final, Literal

Extra = Literal["cli", "server", "spark"]

MODULES: Final[dict[Extra, tuple[str, ...]]] = {
    "cli": ("rich", "typer"),
    "server": (
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
        "uvicorn",
        *(("uvloop",) if sys.platform != "win32" else ()),
    ),
    "spark": ("pyarrow", "pyspark"),
}
"""What each extra in ``pyproject.toml`` makes importable."""


class MissingExtraError(ImportError):
    """Packages that a part of RaftMQ needs are not installed. The message names them and the command that installs them."""


def missing_modules(extra: Extra) -> list[str]:
    """Return the modules of an extra that cannot be found. Imports none of them."""
    return [name for name in MODULES[extra] if find_spec(name) is None]


def require(extra: Extra, user: str) -> None:
    """Return if an extra is installed.

    Args:
        extra: what is needed.
        user: what needs it, as the first words of the error.

    Raises:
        MissingExtraError: it is not installed, or only in part.
    """
    missing = missing_modules(extra)
    if missing:
        raise MissingExtraError(
            f"{user} needs packages that are not installed ({', '.join(missing)}): pip install 'raftmq[{extra}]'"
        )
