"""Which parts of RaftMQ need packages that a client does not, and what to install when they are missing.

``pip install raftmq`` brings what the SDK imports. Everything else is an extra of the package. Must import nothing but the standard
library: it runs where packages are missing.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final, Literal, NoReturn

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

SERVER_COMMANDS: Final = ("broker", "config", "dev", "doctor")
"""Commands of ``raftmq`` that run a broker, or read its files."""
DEFECT_EXIT_CODE: Final = 1
"""Something about this machine; see `raftmq.cli.exit_codes`, which needs typer."""


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


def require_for_command(arguments: list[str]) -> None:
    """As `require`, for a command line of ``raftmq``. Help is there without a broker's packages."""
    words = [argument for argument in arguments if not argument.startswith("-")]
    name = " ".join(("raftmq", *words[:2])) if words[:1] == ["broker"] else " ".join(("raftmq", *words[:1]))
    is_help = any(argument in ("-h", "--help") for argument in arguments)
    is_of_server = words[:1] and words[0] in SERVER_COMMANDS
    require("server" if is_of_server and not is_help else "cli", name)


def main() -> None:
    """Run the command line where its packages are installed; else say what to install, and end the process."""
    try:
        require_for_command(sys.argv[1:])
    except MissingExtraError as error:
        _end(str(error))
    from raftmq.cli.main import main as run

    run()


def _end(sentence: str) -> NoReturn:
    if sys.stderr is not None:
        sys.stderr.write(f"raftmq: {sentence}\n")
    raise SystemExit(DEFECT_EXIT_CODE)
