"""A worker of Spark does not visit the objects of its modules after each task."""

import sys

import pytest
from raftmq.spark.base import worker_garbage
from raftmq.spark.base.worker_garbage import EXEMPTIONS_MAX, REUSED, exempt_modules


def test_objects_are_exempted_when_a_reused_worker_has_loaded_more_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark collects all garbage after each task, which took 54 ms for the modules of the sink alone."""
    frozen: list[bool] = []
    monkeypatch.setattr(worker_garbage, "_exempt_modules", 0)
    monkeypatch.setattr(worker_garbage, "_exemptions", 0)
    monkeypatch.setattr("raftmq.spark.base.worker_garbage.gc.freeze", lambda: frozen.append(True))
    monkeypatch.delenv(REUSED, raising=False)
    exempt_modules()
    assert frozen == []
    monkeypatch.setenv(REUSED, "1")
    exempt_modules()
    exempt_modules()
    assert frozen == [True]
    monkeypatch.setitem(sys.modules, "a_new_module", sys)
    exempt_modules()
    assert frozen == [True, True]
    for number in range(EXEMPTIONS_MAX):
        monkeypatch.setitem(sys.modules, f"a_new_module_{number}", sys)
        exempt_modules()
    assert len(frozen) == EXEMPTIONS_MAX
