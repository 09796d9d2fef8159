"""The ``raftmq`` command, also ``python -m raftmq``. If its packages are missing, it reports which ones to install."""

from __future__ import annotations

import sys
from typing import Final, NoReturn

from raftmq.extras import MissingExtraError, require

SERVER_COMMANDS: Final = ("broker", "config", "dev", "doctor", "recover")
"""Commands of ``raftmq`` that run a broker or read its files."""
CLIENT_COMMANDS: Final = (["config", "list"], ["config", "set"], ["config", "unset"])
"""Commands among them that only ask a running broker."""
DEFECT_EXIT_CODE: Final = 1
"""Exit code for a problem of this machine, as in `raftmq.cli.exit_codes`, which needs typer."""
INTERRUPTED_EXIT_CODE: Final = 130
"""Exit code after Ctrl-C, as there."""


def require_for_command(arguments: list[str]) -> None:
    """Check the packages for a command line, as `require` does. Help never needs a broker's packages."""
    words = [argument for argument in arguments if not argument.startswith("-")]
    name = " ".join(("raftmq", *words[:2])) if words[:1] == ["broker"] else " ".join(("raftmq", *words[:1]))
    is_help = any(argument in ("-h", "--help") for argument in arguments)
    is_of_server = bool(words) and words[0] in SERVER_COMMANDS and words[:2] not in CLIENT_COMMANDS
    require("server" if is_of_server and not is_help else "cli", name)


def main() -> None:
    """Run the command line. If its packages are missing, report which ones to install and exit."""
    try:
        require_for_command(sys.argv[1:])
        from raftmq.cli.main import main as run
    except MissingExtraError as error:
        _end(str(error))
    except KeyboardInterrupt:  # the imports take a moment, and nothing was done yet
        raise SystemExit(INTERRUPTED_EXIT_CODE) from None
    run()


def _end(sentence: str) -> NoReturn:
    if sys.stderr is not None:
        sys.stderr.write(f"raftmq: {sentence}\n")
    raise SystemExit(DEFECT_EXIT_CODE)


if __name__ == "__main__":
    main()
