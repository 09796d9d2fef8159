"""The assignors that RaftMQ provides, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raftmq.assignors.assignor import Assignor
from raftmq.assignors.range import RangeAssignor
from raftmq.assignors.round_robin import RoundRobinAssignor
from raftmq.assignors.sticky import StickyAssignor

DEFAULT_ASSIGNOR: Final = StickyAssignor.name
BUILTIN_ASSIGNORS: Final[Mapping[str, Assignor]] = {
    assignor.name: assignor for assignor in (StickyAssignor(), RangeAssignor(), RoundRobinAssignor())
}
