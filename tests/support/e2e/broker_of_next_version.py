"""Run `raftmq` as a next version would, if the file `<data directory>.next` exists.

It has the parts of the simulator's next version (`sim/cluster/upgrades/next_version.py`): an added command, an added field of a command and of a row,
and a higher wire version with its own frame. A change of the settings of balancing uses the added field, and the order to rebalance is replaced
by the added command. Each use of the wire version is printed once.
"""

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FIELD_NOTE, COMMAND_NOTE = 1, 2


def marker(data_dir: Path) -> Path:
    """Return the file that makes the broker with this data directory one of the next version."""
    return data_dir.with_name(f"{data_dir.name}.next")


def become_next() -> None:
    """Add the parts of the next version. Must be called before the broker starts."""
    from raftmq.broker.environment import NodeEnvironment
    from raftmq.broker.services import balancing
    from raftmq.fsm.metadata_commands import SetBalancing

    from sim.cluster.upgrades import next_version

    class SayingVersion(next_version.NextVersion):
        """Says when a kind of greeting is sent, kept back or received for the first time."""

        def __setattr__(self, name: str, value: object) -> None:
            if value == 1:
                print(f"next version: {name}", file=sys.stderr, flush=True)
            super().__setattr__(name, value)

    def with_note(**fields: object) -> SetBalancing | next_version.SetNote:
        if "rebalance" in fields:
            return next_version.SetNote(COMMAND_NOTE)
        return next_version.NextSetBalancing(**fields, note=FIELD_NOTE)

    next_version.is_next_version = lambda: True
    SayingVersion().install()
    NodeEnvironment.feature_level = lambda self: next_version.NEXT_LEVEL  # type: ignore[method-assign]
    balancing.SetBalancing = with_note  # type: ignore[attr-defined,assignment]  # only called


if __name__ == "__main__":
    sys.path.pop(0)  # this folder's modules must not hide the product's
    if "--data-dir" in sys.argv and marker(Path(sys.argv[sys.argv.index("--data-dir") + 1])).exists():
        sys.path.append(str(ROOT))
        become_next()
    runpy.run_module("raftmq", run_name="__main__", alter_sys=True)
