"""Appends stop before the disk is full."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from raftmq.storage.disk_space import (
    GIB,
    MIB,
    START_BYTES,
    START_BYTES_PER_REPLICA,
    DiskReserve,
    VolumeFullError,
    default_reserve_bytes,
)


@pytest.mark.parametrize(
    ("volume", "reserve"),
    [
        (5 * GIB, 1 * GIB),  # 20 % of a small volume
        (10 * GIB, 2 * GIB),
        (50 * GIB, 2 * GIB),
        (1000 * GIB, 30 * GIB),  # 3 % of a big one
    ],
)
def test_the_default_reserve_fits_the_volume(volume: int, reserve: int) -> None:
    assert default_reserve_bytes(volume) == reserve


def reserve(directory: Path, free: list[int], *, reserve_bytes: int | None = 100 * MIB) -> DiskReserve:
    return DiskReserve(
        directory, reserve_bytes, ballast_bytes=MIB, free_bytes=lambda: free[0], volume_bytes=lambda: 10 * GIB
    )


def test_a_change_of_the_reserve_outlasts_a_probe_of_the_volume(tmp_path: Path) -> None:
    """A thread computes the default while the event loop sets a value."""

    def volume_bytes() -> int:
        disk.set_reserve(5 * MIB)
        return 10 * GIB

    disk = DiskReserve(tmp_path, None, volume_bytes=volume_bytes)
    assert disk.reserve_bytes == 2 * GIB
    assert disk.reserve_bytes == 5 * MIB
    disk.set_reserve(None)
    assert disk.reserve_bytes == 2 * GIB


def test_bytes_in_flight_count_against_the_room(tmp_path: Path) -> None:
    disk = reserve(tmp_path, [150 * MIB])
    assert disk.create_ballast()
    assert disk.has_room(50 * MIB)
    assert not disk.has_room(50 * MIB + 1)


def test_the_default_is_taken_from_the_volume(tmp_path: Path) -> None:
    disk = reserve(tmp_path, [2 * GIB], reserve_bytes=None)
    assert disk.reserve_bytes == 2 * GIB
    assert not disk.has_room(0), "the ballast has no place beside it"


def test_the_space_of_a_released_ballast_is_not_room(tmp_path: Path) -> None:
    """A full disk must not look free again because its ballast was released."""
    free = [200 * MIB]
    disk = reserve(tmp_path, free)
    assert disk.create_ballast()
    free[0] = 99 * MIB
    assert not disk.has_room(0)
    assert disk.release_ballast()
    free[0] += MIB
    assert not disk.has_room(0)
    free[0] = 101 * MIB
    assert disk.has_room(0)
    assert disk.create_ballast()


def test_on_a_full_volume_the_ballast_is_released_before_any_file_is_opened(tmp_path: Path) -> None:
    free = [GIB]
    disk = reserve(tmp_path, free)
    assert disk.create_ballast()
    disk.prepare_opening()
    assert disk.has_ballast
    free[0] = 4 * MIB
    disk.prepare_opening()
    assert not disk.has_ballast


def test_copies_of_an_earlier_process_make_room_for_a_start(tmp_path: Path) -> None:
    """A copy may have filled the volume. The ballast stays for later needs."""
    free = [GIB]
    disk = reserve(tmp_path, free)
    assert disk.create_ballast()
    groups = tmp_path / "groups"
    groups.mkdir()
    names = ["7-3.state.mdb.copy.1", "7-3.state.mdb.new.2", "7-3.state.mdb.new.2-lock", "7-3.mdb.new"]
    for name in ("7-3.mdb", "7-3.state.mdb", *names):
        (groups / name).touch()
    disk.prepare_opening()
    assert len(list(groups.iterdir())) == 6, "with enough room the store removes them later"
    disk._probe_free = lambda: GIB if not (groups / names[0]).exists() else 0
    disk.prepare_opening()
    assert {path.name for path in groups.iterdir()} == {"7-3.mdb", "7-3.state.mdb"}
    assert disk.has_ballast


def test_the_real_volume_is_probed_by_default(tmp_path: Path) -> None:
    disk = DiskReserve(tmp_path)
    assert disk.reserve_bytes > 0
    assert disk.free_bytes() > 0
    assert not disk.has_room(1 << 62)


def test_ballast_is_allocated_released_and_restored(tmp_path: Path) -> None:
    disk = reserve(tmp_path, [GIB])
    assert not disk.release_ballast()
    assert disk.create_ballast()
    stat = (tmp_path / "ballast").stat()
    assert stat.st_size == MIB
    assert stat.st_blocks * 512 >= MIB
    assert disk.create_ballast()
    assert disk.release_ballast()
    assert not disk.has_ballast
    assert disk.create_ballast()


def test_ballast_never_takes_the_reserve(tmp_path: Path) -> None:
    free = [101 * MIB - 1]
    disk = reserve(tmp_path, free)
    assert not disk.create_ballast()
    assert list(tmp_path.iterdir()) == []
    free[0] += 1
    assert disk.create_ballast()


def test_an_incomplete_ballast_is_completed(tmp_path: Path) -> None:
    (tmp_path / "ballast").write_bytes(b"x" * 100)
    disk = reserve(tmp_path, [GIB])
    assert not disk.has_ballast
    assert disk.create_ballast()
    assert disk.has_ballast


def test_no_incomplete_ballast_is_left_when_the_volume_fills_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(_descriptor: int, _offset: int, _length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", no_room)
    assert not reserve(tmp_path, [GIB]).create_ballast()
    assert list(tmp_path.iterdir()) == []


def test_without_a_free_file_descriptor_the_ballast_is_missing(tmp_path: Path) -> None:
    """Its attempt ended with an error, although it promises an answer."""
    disk = reserve(tmp_path, [GIB])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        is_created = disk.create_ballast()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not is_created
    assert "Too many open files" in disk.ballast_error
    assert disk.create_ballast()
    assert disk.ballast_error == ""


def test_a_start_without_room_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "groups").mkdir()
    for number in range(1, 4):
        (tmp_path / "groups" / f"{number}-1.mdb").touch()
    needed = START_BYTES + 3 * START_BYTES_PER_REPLICA
    with pytest.raises(VolumeFullError, match=rf"{tmp_path} has 0\.0 MB free, and the broker needs 2\.1 MB to start"):
        reserve(tmp_path, [0]).prepare_opening()
    with pytest.raises(VolumeFullError):
        reserve(tmp_path, [needed - 1]).prepare_opening()
    reserve(tmp_path, [needed]).prepare_opening()


def test_the_ballast_provides_room_for_a_start(tmp_path: Path) -> None:
    free = [GIB]
    disk = reserve(tmp_path, free)
    assert disk.create_ballast()
    disk._probe_free = lambda: 0 if disk.has_ballast else 4 * MIB
    disk.prepare_opening()
    assert not disk.has_ballast
