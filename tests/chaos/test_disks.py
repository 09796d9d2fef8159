"""Check the disk faults on plain files, without brokers."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from tests.chaos.damage import flip_bytes, flip_in_newest_row, truncate
from tests.chaos.disk_shim import DiskOrders
from tests.chaos.machine import missing_for_shim, missing_for_volumes
from tests.chaos.volume import Volume

MIB = 1024 * 1024
WRITER = """
import sys, lmdb
environment = lmdb.open(sys.argv[1], subdir=False, max_dbs=1)
print("open", flush=True)
for line in sys.stdin:
    try:
        with environment.begin(write=True) as transaction:
            transaction.put(line.strip().encode(), b"x" * 5000)
        print("done", flush=True)
    except lmdb.Error as error:
        print("failed", error, flush=True)
"""


class Writer:
    """A separate process that commits a key to LMDB for each line, as the storage of a broker does."""

    def __init__(self, path: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environment,
            text=True,
        )
        assert self.answer() == "open"

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def begin(self, key: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{key}\n")
        self._process.stdin.flush()

    def put(self, key: str) -> str:
        self.begin(key)
        return self.answer()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def keys_in(path: Path) -> list[bytes]:
    with (
        lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment,
        environment.begin() as transaction,
        transaction.cursor() as cursor,
    ):
        return list(cursor.iternext(keys=True, values=False))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    missing = missing_for_shim()
    if missing:
        pytest.skip(f"{missing}: the C library's functions cannot be replaced")
    return DiskOrders.build(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def orders(tmp_path: Path, library: Path) -> Iterator[DiskOrders]:
    made = DiskOrders(tmp_path, library, "disk")
    yield made
    made.close()


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    missing = missing_for_volumes()
    if missing:
        pytest.skip(missing)
    made = Volume(tmp_path, "volume", 64 * MIB)
    yield made
    made.close()
    assert not made.path.exists()
    assert not made.image.exists()


def test_a_disk_without_orders_synchronises_both_the_pages_and_the_root_of_each_commit(
    tmp_path: Path, orders: DiskOrders
) -> None:
    writer = Writer(tmp_path / "file.mdb", orders.environment)
    before = orders.counts()[0]
    assert writer.put("a") == "done"
    assert orders.counts()[0] - before == 2
    assert orders.counts()[1:] == (0, 0, 0)
    writer.kill()
    assert keys_in(tmp_path / "file.mdb") == [b"a"]


def test_a_socket_may_reuse_the_descriptor_of_a_synchronised_file(orders: DiskOrders) -> None:
    program = (
        "import os, socket; fd = os.open('/proc/self/comm', os.O_RDONLY | os.O_DSYNC); os.close(fd); "
        "one, two = socket.socketpair(); assert fd in (one.fileno(), two.fileno()); "
        "assert os.write(one.fileno(), b'x') == os.write(two.fileno(), b'x') == 1"
    )
    subprocess.run([sys.executable, "-c", program], env=os.environ | orders.environment, check=True)


def test_a_slow_disk_delays_commits_and_loses_nothing(tmp_path: Path, orders: DiskOrders) -> None:
    writer = Writer(tmp_path / "file.mdb", orders.environment)
    orders.be_slow(200)
    start = time.monotonic()
    assert writer.put("a") == "done"
    assert time.monotonic() - start >= 0.4
    orders.work()
    writer.kill()
    assert keys_in(tmp_path / "file.mdb") == [b"a"]


def test_a_hanging_disk_answers_when_it_works_again(tmp_path: Path, orders: DiskOrders) -> None:
    writer = Writer(tmp_path / "file.mdb", orders.environment)
    orders.hang()
    writer.begin("a")
    time.sleep(0.3)
    assert keys_in(tmp_path / "file.mdb") == []
    orders.work()
    assert writer.answer() == "done"
    writer.kill()


@pytest.mark.parametrize("fault", ["fail_syncs", "fail_writes"])
def test_commits_on_a_failing_disk_fail(tmp_path: Path, orders: DiskOrders, fault: str) -> None:
    writer = Writer(tmp_path / "file.mdb", orders.environment)
    getattr(orders, fault)()
    assert writer.put("a").startswith("failed")
    assert orders.counts()[3] >= 1
    writer.kill()


def test_a_power_loss_keeps_synchronised_files_and_loses_others(volume: Volume) -> None:
    kept, lost = volume.path / "kept", volume.path / "lost"
    with kept.open("wb") as file:
        file.write(b"kept")
        file.flush()
        os.fsync(file.fileno())
    lost.write_bytes(b"lost")
    volume.lose_power()
    with pytest.raises(OSError, match="Input/output error"):
        (volume.path / "later").write_bytes(b"later")
    volume.come_back()
    assert kept.read_bytes() == b"kept"
    assert not lost.exists()


def test_a_power_loss_loses_only_commits_with_swallowed_syncs(volume: Volume, orders: DiskOrders) -> None:
    """This is the control of every test with a power loss: such a test would notice a missing fsync."""
    path = volume.path / "file.mdb"
    writer = Writer(path, orders.environment)
    assert writer.put("synchronised") == "done"
    orders.swallow_syncs()
    assert writer.put("swallowed") == "done"
    assert sorted(keys_in(path)) == [b"swallowed", b"synchronised"]
    volume.lose_power()
    writer.kill()
    volume.come_back()
    assert keys_in(path) == [b"synchronised"]


def test_a_volume_is_unmounted_when_its_owner_is_killed(tmp_path: Path) -> None:
    if missing_for_volumes():
        pytest.skip(str(missing_for_volumes()))
    program = (
        "import sys, time, pathlib; sys.path.insert(0, '.'); from tests.chaos.volume import Volume; "
        "volume = Volume(pathlib.Path(sys.argv[1]), 'volume', 16 << 20); print('mounted', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"mounted\n"
        assert os.path.ismount(tmp_path / "volume")
        owner.kill()
    deadline = time.monotonic() + 5
    while (tmp_path / "volume").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not (tmp_path / "volume.image").exists()


def test_damage_changes_exactly_the_reported_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = random.Random(1).randbytes(100_000)
    path.write_bytes(content)
    places = flip_bytes(path, random.Random(2), 3)
    assert [at for at, (a, b) in enumerate(zip(content, path.read_bytes(), strict=True)) if a != b] == places
    assert len(places) == 3
    size = truncate(path, random.Random(3))
    assert path.stat().st_size == size < len(content)


def test_flip_in_newest_row_damages_only_that_row(tmp_path: Path) -> None:
    path = tmp_path / "file.mdb"
    rows = {bytes([n]): bytes([n]) * 50 for n in range(1, 5)}
    with lmdb.open(str(path), subdir=False, max_dbs=1) as environment:
        database = environment.open_db(b"log")
        with environment.begin(write=True, db=database) as transaction:
            for key, value in rows.items():
                transaction.put(key, value)
    assert flip_in_newest_row(path) >= 1
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, max_dbs=1) as environment:
        database = environment.open_db(b"log", create=False)
        with environment.begin(db=database) as transaction:
            found = {key: transaction.get(key) for key in rows}
    assert {key for key in rows if found[key] != rows[key]} == {b"\x04"}
