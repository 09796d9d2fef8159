"""Run `raftmq` as the version before the newest level with a command would, if the file `<data directory>.old` exists.

Such a broker says that it knows the level before, and cannot read a command that needs the newest one. This is a program with the arguments of
`raftmq broker start`. It changes nothing else of the product.
"""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from raftmq.fsm import feature_levels

CommandT = TypeVar("CommandT")
OLD_LEVEL = max(feature_levels.METADATA_LEVELS.values()) - 1


def marker(data_dir: Path) -> Path:
    """Return the file that makes the broker with this data directory an old one."""
    return data_dir.with_name(f"{data_dir.name}.old")


def become_old() -> None:
    """Know nothing of the newest feature level. Must be called before the broker is imported."""
    from raftmq.fsm import log_partition, metadata

    feature_levels.FEATURE_LEVEL = OLD_LEVEL  # type: ignore[misc]
    for module, level_of in ((metadata, feature_levels.metadata_level), (log_partition, feature_levels.log_level)):
        module.decode_command = _limited(level_of, module.decode_command)  # type: ignore[attr-defined]


def _limited(
    level_of: Callable[[bytes], int | None], decode: Callable[[bytes], CommandT | None]
) -> Callable[[bytes], CommandT | None]:
    def decode_old(payload: bytes) -> CommandT | None:
        level = level_of(payload)
        return decode(payload) if level is not None and level <= OLD_LEVEL else None

    return decode_old


if __name__ == "__main__":
    if "--data-dir" in sys.argv and marker(Path(sys.argv[sys.argv.index("--data-dir") + 1])).exists():
        become_old()
    sys.path.pop(0)  # this folder's modules must not hide the product's
    runpy.run_module("raftmq", run_name="__main__", alter_sys=True)
