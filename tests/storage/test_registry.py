"""The node's record of itself survives every kind of boot."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from raftmq.errors import InvariantError
from raftmq.storage.errors import RegistryError
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.registry import Registry
from raftmq.storage.registry_codec import (
    FORMAT_VERSION,
    NodeRow,
    ReplicaRow,
    ReplicaState,
    decode_node,
    decode_row,
    encode_node,
    encode_row,
)
from raftmq.types import GroupId, NodeId, ReplicaId

from tests.support.storage.log_builder import KEY, OTHER


@contextmanager
def booted(path: Path, *, is_clean: bool = True, suspects: Iterable[ReplicaKey] = ()) -> Iterator[Registry]:
    registry = Registry(path, suspects=frozenset(suspects))
    try:
        yield registry
    finally:
        registry.close(is_clean=is_clean)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "node.mdb"


def test_a_new_registry_has_no_identity(path: Path) -> None:
    with booted(path) as registry:
        assert (registry.cluster_id, registry.uuid, registry.node_id, registry.boot) == ("", "", 0, 1)
        assert not registry.was_abnormal_exit
        assert registry.live_replicas() == []
        assert registry.peer_addresses() == {}


def test_identity_survives_and_boots_are_counted(path: Path) -> None:
    with booted(path) as registry:
        registry.set_identity(uuid="u1", node_id=0)
        registry.set_cluster("c1")
        registry.set_identity(uuid="u1", node_id=4)
        registry.set_peer_addresses({NodeId(2): "b:1", NodeId(1): "a:1"})
    with booted(path) as registry:
        assert (registry.cluster_id, registry.uuid, registry.node_id, registry.boot) == ("c1", "u1", 4, 2)
        assert registry.peer_addresses() == {1: "a:1", 2: "b:1"}


@pytest.mark.parametrize(
    "change",
    [
        lambda registry: registry.set_cluster("c2"),
        lambda registry: registry.set_identity(uuid="u2", node_id=4),
        lambda registry: registry.set_identity(uuid="u1", node_id=5),
    ],
)
def test_identity_is_permanent(path: Path, change: Callable[[Registry], None]) -> None:
    """A cluster forms once, and a uuid is lost only with its disk."""
    with booted(path) as registry:
        registry.set_identity(uuid="u1", node_id=4)
        registry.set_cluster("c1")
        with pytest.raises(InvariantError, match="permanent"):
            change(registry)
        assert (registry.cluster_id, registry.uuid, registry.node_id) == ("c1", "u1", 4)


def test_replicas_are_remembered_in_every_state(path: Path) -> None:
    third = ReplicaKey3
    with booted(path) as registry:
        for key in (third, KEY, OTHER):
            registry.add_replica(key)
            registry.add_replica(key)
        registry.quarantine(OTHER, "row 7 does not match its checksum")
        registry.quarantine(OTHER, "another reason")
        registry.retire_replica(third)
        registry.retire_replica(third)
    with booted(path) as registry:
        assert registry.live_replicas() == [KEY, OTHER]
        assert registry.quarantined() == {OTHER: "row 7 does not match its checksum"}
        assert all(registry.has_replica(key) for key in (KEY, OTHER, third))
        row = registry.replica(third)
        assert row is not None
        assert row.state is ReplicaState.RETIRED


ReplicaKey3 = type(KEY)(GroupId(9), ReplicaId(1))


@pytest.mark.parametrize("end", [Registry.retire_replica, lambda registry, key: registry.quarantine(key, "x")])
def test_a_retired_replica_is_never_created_again(path: Path, end: Callable[[Registry, object], None]) -> None:
    with booted(path) as registry:
        registry.add_replica(KEY)
        end(registry, KEY)
        with pytest.raises(InvariantError, match="replica_created_once"):
            registry.add_replica(KEY)


def test_only_a_node_that_left_its_cluster_has_left_one(path: Path) -> None:
    def has_left(*changes: Callable[[Registry], None]) -> bool:
        with booted(path) as registry:
            for change in changes:
                change(registry)
            return registry.has_left_cluster

    joining = (lambda registry: registry.set_identity(uuid="u1", node_id=1), lambda registry: registry.add_replica(KEY))
    assert not has_left(*joining), "forming or joining was interrupted"
    assert not has_left(lambda registry: registry.set_cluster("c1"))
    assert has_left(lambda registry: registry.enter_cluster("", created=None, retired=KEY))
    assert has_left()
    assert not has_left(lambda registry: registry.set_cluster("c2"))


def test_a_retired_replica_is_not_quarantined_later(path: Path) -> None:
    with booted(path) as registry:
        registry.add_replica(KEY)
        registry.retire_replica(KEY)
        registry.quarantine(KEY, "late news")
        assert registry.quarantined() == {}


def test_a_file_that_a_process_died_of_reading_needs_verification(path: Path) -> None:
    with booted(path, is_clean=False) as registry:
        registry.add_replica(KEY)
        registry.add_replica(OTHER)
        registry.mark_open([KEY, OTHER])
    with booted(path, suspects=[KEY]) as registry:
        assert registry.was_abnormal_exit
        assert registry.needs_verification(KEY)
        assert not registry.needs_verification(OTHER)
        assert not registry.needs_verification(ReplicaKey3)
        registry.mark_verified(KEY)
        assert not registry.needs_verification(KEY)
    with booted(path) as registry:
        assert not registry.was_abnormal_exit
        assert not registry.needs_verification(KEY)


@pytest.mark.parametrize("end", ["a clean stop", "a while"])
def test_a_file_is_no_longer_suspected_after_a_clean_stop_or_some_time(end: str, path: Path) -> None:
    for suspects in ([], [KEY]):
        with booted(path, is_clean=False, suspects=suspects) as registry:
            registry.add_replica(KEY)
            registry.mark_open([KEY])
    with booted(path, is_clean=end == "a clean stop") as registry:
        assert registry.needs_verification(KEY)
        registry.mark_open([KEY])
        if end == "a while":
            registry.forget_exits()
            assert not registry.needs_verification(KEY)
    with booted(path) as registry:
        assert not registry.needs_verification(KEY)


def test_kills_implicate_no_file(path: Path) -> None:
    """No file causes a kill or a power failure, however often they happen and whichever files are open."""
    for _ in range(4):
        with booted(path, is_clean=False) as registry:
            registry.add_replica(KEY)
            registry.mark_open([KEY])
            assert not registry.needs_verification(KEY)


def test_retired_replicas_do_not_slow_down_the_listing_of_live_ones(path: Path) -> None:
    """Rows of retired replicas stay in the file permanently, but listing the live replicas does not visit them."""
    with booted(path) as registry:
        for number in range(1, 300):
            registry.add_replica(ReplicaKey(GroupId(number), ReplicaId(1)))
            if number > 3:
                registry.retire_replica(ReplicaKey(GroupId(number), ReplicaId(1)))
        looked_at = len(registry._replicas)
        assert looked_at == 3
        assert registry.live_replicas() == sorted(registry._replicas)
        assert registry.has_replica(ReplicaKey(GroupId(200), ReplicaId(1)))
    with booted(path) as registry:
        assert (len(registry._replicas), len(registry._retired)) == (3, 296)


def test_an_abnormal_exit_without_open_files_implicates_no_file(path: Path) -> None:
    for _ in range(3):
        with booted(path, is_clean=False) as registry:
            registry.add_replica(KEY)
    with booted(path) as registry:
        assert registry.was_abnormal_exit
        assert not registry.needs_verification(KEY)


def test_everything_is_durable_when_a_process_is_killed(path: Path) -> None:
    """The other process exits without closing anything, as after a kill."""
    program = (
        "import os, sys\n"
        "from raftmq.storage.registry import Registry\n"
        "from raftmq.storage.log_store import ReplicaKey\n"
        "registry = Registry(sys.argv[1])\n"
        "registry.set_identity(uuid='u1', node_id=3)\n"
        "registry.set_cluster('c1')\n"
        "registry.add_replica(ReplicaKey(7, 3))\n"
        "registry.mark_open([ReplicaKey(7, 3)])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == -9
    with booted(path) as registry:
        assert (registry.cluster_id, registry.uuid, registry.node_id) == ("c1", "u1", 3)
        assert registry.live_replicas() == [KEY]
        row = registry.replica(KEY)
        assert row is not None
        assert (registry.was_abnormal_exit, row.abnormal_exits) == (True, 0)


def test_a_second_process_is_refused(path: Path) -> None:
    with booted(path):
        program = (
            "import sys\n"
            "from raftmq.storage.registry import Registry, RegistryError\n"
            "try:\n"
            "    Registry(sys.argv[1])\n"
            "except RegistryError as error:\n"
            "    sys.exit(5 if 'in use' in str(error) else 6)\n"
        )
        assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == 5
    with booted(path) as registry:
        assert registry.boot == 2


def test_a_flipped_byte_in_any_row_is_found_at_start(path: Path) -> None:
    with booted(path) as registry:
        registry.set_identity(uuid="u1", node_id=3)
        registry.add_replica(KEY)
        registry.quarantine(KEY, "a reason")
    content = path.read_bytes()
    for part in (b'"uuid": "u1"', b"quarantined", b"a reason"):
        start = content.rfind(part)
        assert start > 0
        damaged = content.replace(part, part[:-2] + bytes([part[-2] ^ 1]) + part[-1:])
        path.write_bytes(damaged)
        with pytest.raises(RegistryError, match="checksum"):
            Registry(path)
    path.write_bytes(content)
    with booted(path) as registry:
        assert registry.quarantined() == {KEY: "a reason"}


def test_a_file_that_is_no_registry_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"something else" * 1000)
    with pytest.raises(RegistryError):
        Registry(path)


def test_an_older_boot_than_the_recorded_one_is_ignored(path: Path) -> None:
    with booted(path) as registry:
        registry.remember_boot("u2", 6, b"666-")
        registry.remember_boot("u2", 5, b"555-", "u3")
        assert registry.known_boots() == {"u2": (6, b"666-")}


def test_fields_that_a_later_version_added_to_the_same_format_are_ignored() -> None:
    """A broker that is started with the earlier program again has them in its registry."""
    node = NodeRow("c1", "u1", 4, 2)
    later = json.loads(encode_node(node)) | {"added": [1, 2]}
    assert decode_node(json.dumps(later).encode()) == node
    row = ReplicaRow(ReplicaState.QUARANTINED, "damaged", 3, 1)
    assert decode_row(json.dumps([*json.loads(encode_row(row)), "added"]).encode()) == row


def test_a_registry_of_a_later_format_is_refused_in_a_sentence() -> None:
    later = json.loads(encode_node(NodeRow())) | {"format_version": FORMAT_VERSION + 1}
    with pytest.raises(
        RegistryError, match="format 2, but this version reads format 1: start the broker with the version"
    ):
        decode_node(json.dumps(later).encode())


def test_the_replicas_are_listed_while_a_write_waits_for_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop asks, right after it ordered the write of a quarantine. It stood still until a slow disk had synced it."""
    registry = Registry(path)
    registry.add_replica(KEY)
    registry.add_replica(OTHER)
    registry.quarantine(OTHER, "a flipped bit")
    is_writing, may_end = threading.Event(), threading.Event()
    write = registry._write

    def slow(*arguments: Any) -> None:
        is_writing.set()
        may_end.wait(30)
        write(*arguments)

    monkeypatch.setattr(registry, "_write", slow)
    with ThreadPoolExecutor(2) as threads:
        quarantining = threads.submit(registry.quarantine, KEY, "another one")
        assert is_writing.wait(30)
        try:
            assert threads.submit(registry.quarantined).result(10) == {OTHER: "a flipped bit"}
            assert threads.submit(registry.live_replicas).result(10) == sorted((KEY, OTHER))
        finally:
            may_end.set()
        quarantining.result(10)
    assert registry.quarantined() == dict(sorted({OTHER: "a flipped bit", KEY: "another one"}.items()))
    registry.close(is_clean=True)
