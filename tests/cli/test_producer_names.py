"""`raftmq cluster forget-names` against fake brokers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cli.cluster_commands import ClusterCommands


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterCommands]:
    running = ClusterCommands.start_cluster(monkeypatch)
    running.cluster.names.update({f"spark/{number}": (number, 3, b"") for number in range(12)})
    yield running
    running.close()


def test_unused_names_are_shown_and_removed(commands: ClusterCommands) -> None:
    lines = commands.text("cluster", "forget-names", "--dry-run").splitlines()
    assert lines[0] == "spark/0  epoch 3, unused for 2s"
    assert lines[-2:] == ["... and 2 more", "12 names would be removed, 12 of at most 100000 in use"]
    assert commands.text("cluster", "forget-names", "--prefix", "spark/1", "--yes") == (
        "3 names removed, 9 of at most 100000 in use\n"
    )
    answer = commands.answer("cluster", "forget-names", "--unused-for", "2d", "--yes")
    assert (answer["count"], answer["left_count"], answer["dry_run"]) == (9, 0, False)


def test_the_number_of_names_is_shown_before_the_question(commands: ClusterCommands) -> None:
    done = commands.fed("cluster", "forget-names", "--prefix", "spark/1", stdin=b"y\n")
    assert done.stderr == "3 names of 12 unused for 1d\nRemove 3 names of producers? [y/N]: "
    assert done.stdout == "3 names removed, 9 of at most 100000 in use\n", "only results are on standard output"


def test_nothing_is_asked_when_there_is_nothing_to_remove(commands: ClusterCommands) -> None:
    assert commands.text("cluster", "forget-names", "--prefix", "nobody") == (
        "0 names removed, 12 of at most 100000 in use\n"
    )
