"""Run `raftmq` with low limits of producers and of lags, and with defects while the file `<data directory>.defects` exists.

The defects are those that two alerts are for: background work that raises, and a request that raises. This is a program with the arguments of
`raftmq broker start`. It changes nothing else of the product.
"""

import runpy
import sys
from pathlib import Path

NAMES_MAX = 10
PRODUCERS_MAX = 20
READERS_MAX = 3


class DefectError(Exception):
    """Raised by the defects."""


def marker(data_dir: Path) -> Path:
    """Return the file that turns the defects of the broker with this data directory on."""
    return data_dir.with_name(f"{data_dir.name}.defects")


def lower_limits() -> None:
    """Lower the limits that a test could only reach in minutes. Must be called before the broker is imported."""
    from raftmq.fsm import producer_names, producer_table

    producer_names.NAMED_PRODUCERS_MAX = NAMES_MAX  # type: ignore[misc]
    producer_table.ProducerTable.__init__.__defaults__ = (PRODUCERS_MAX, PRODUCERS_MAX)
    from raftmq.broker.base import limits

    fields = limits.Limits.__dataclass_fields__
    defaults = [fields[name].default for name in fields]
    defaults[list(fields).index("lag_readers_max")] = READERS_MAX
    limits.Limits.__init__.__defaults__ = tuple(defaults)


def have_defects(path: Path) -> None:
    """Fail in housekeeping and in the listing of topics while the file exists."""
    from raftmq.broker.cluster.housekeeping import Housekeeping
    from raftmq.broker.services.admin import AdminService

    grow_maps, list_topics = Housekeeping.grow_maps, AdminService.list_topics

    def fail() -> None:
        if path.exists():
            raise DefectError

    async def failing_grow_maps(self: Housekeeping) -> None:
        fail()
        await grow_maps(self)

    async def failing_list_topics(self: AdminService, request: object, call: object) -> object:
        fail()
        return await list_topics(self, request, call)

    Housekeeping.grow_maps = failing_grow_maps  # type: ignore[method-assign]
    AdminService.list_topics = failing_list_topics  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    sys.path.pop(0)  # this folder's modules must not hide the product's
    if "--data-dir" in sys.argv:
        lower_limits()
        have_defects(marker(Path(sys.argv[sys.argv.index("--data-dir") + 1])))
    runpy.run_module("raftmq", run_name="__main__", alter_sys=True)
