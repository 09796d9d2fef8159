"""`LocalCluster` with processes that imitate brokers: their command lines, the waits, and the clean-up."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from raftmq.testing import LocalCluster, LocalClusterError

FAKE = Path(__file__).resolve().parents[1] / "support/api/fake_broker.py"
COMMAND = (sys.executable, str(FAKE))


@pytest.fixture(autouse=True)
def cluster_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CLUSTER_SIZE", "3")
    monkeypatch.setenv("FAKE_BROKER", "")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Init reaps a child of a dead process. Without a reaper the child remains visible as a zombie.
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Return whether other processes fulfil the condition in time. It polls with pauses, because a busy loop would take their core."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def starts(cluster: LocalCluster, broker_id: int) -> list[str]:
    return (cluster.data_dir(broker_id) / "starts").read_text().splitlines()


def test_the_first_bootstraps_and_the_others_join_it_each_on_its_own_host() -> None:
    with LocalCluster(3, command=COMMAND) as cluster:
        lines = [starts(cluster, n)[0] for n in cluster.broker_ids]
        assert "--bootstrap" in lines[0]
        assert "--join" not in lines[0]
        peer_address = lines[0].partition("--peer-listen ")[2].split()[0]
        assert all(f"--join {peer_address}" in line for line in lines[1:])
        assert [f"--host local-{n}" in line for n, line in enumerate(lines, 1)] == [True] * 3
        assert cluster.bootstrap_servers == ",".join(cluster.address(n) for n in (1, 2, 3))
        assert "warming up" in cluster.logs(2)


def test_no_broker_and_no_file_remains_after_the_context() -> None:
    with LocalCluster(3, command=COMMAND) as cluster:
        pids = [cluster.pid(n) for n in cluster.broker_ids]
        directory = cluster.data_dir(1).parent
        assert directory.exists()
    assert not any(map(is_alive, pids))
    assert not directory.exists()


def test_a_given_directory_is_kept(tmp_path: Path) -> None:
    with LocalCluster(3, command=COMMAND, directory=tmp_path):
        pass
    assert (tmp_path / "broker-3" / "starts").exists()


def test_a_killed_broker_restarts_on_its_data_and_its_addresses() -> None:
    with LocalCluster(3, command=COMMAND) as cluster:
        address, pid = cluster.address(2), cluster.pid(2)
        cluster.kill(2)
        assert not cluster.is_running(2)
        assert not is_alive(pid)
        cluster.restart(2)
        assert cluster.is_running(2)
        assert cluster.address(2) == address
        again = starts(cluster, 2)[1]
        assert f"--listen {address}" in again
        assert "--join" not in again
        assert "--bootstrap" not in again


def kill_all(cluster: LocalCluster) -> None:
    for broker_id in cluster.broker_ids:
        cluster.kill(broker_id)


def test_a_restart_without_a_majority_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first cannot serve alone, so nothing waits for it until another one completes a majority."""
    with LocalCluster(3, command=COMMAND) as cluster:
        kill_all(cluster)
        monkeypatch.setenv("FAKE_BROKER", "mute")
        cluster._timeout_seconds = 1
        cluster.restart(1)
        with pytest.raises(LocalClusterError, match="broker 1 was not ready within 1 s"):
            cluster.restart(2)


def test_a_restart_waits_for_a_majority_of_the_metadata_voters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CLUSTER_SIZE", "5")
    monkeypatch.setenv("FAKE_VOTERS", "3")
    with LocalCluster(5, command=COMMAND) as cluster:
        kill_all(cluster)
        monkeypatch.setenv("FAKE_BROKER", "mute")
        cluster._timeout_seconds = 1
        for broker_id in (5, 4, 1):
            cluster.restart(broker_id)
        cluster.pause(1)
        cluster.restart(2)  # with a voter that is frozen there is no majority yet
        with pytest.raises(LocalClusterError, match="broker 2 was not ready within 1 s"):
            cluster.restart(3)


def test_a_restarted_broker_that_lost_its_data_does_not_count_for_the_majority() -> None:
    with LocalCluster(3, command=COMMAND) as cluster:
        kill_all(cluster)
        shutil.rmtree(cluster.data_dir(1))
        cluster.restart(2)
        cluster.restart(1)
        assert cluster._unawaited == {1, 2}
        cluster.restart(3)
        assert cluster._unawaited == set()


def test_a_paused_broker_can_be_resumed_and_killed() -> None:
    with LocalCluster(3, command=COMMAND) as cluster:
        cluster.pause(3)
        stat = Path(f"/proc/{cluster.pid(3)}/stat")
        assert eventually(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "T")
        cluster.resume(3)
        assert eventually(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] != "T")
        cluster.pause(3)
        cluster.kill(3)
        assert not cluster.is_running(3)


def test_stop_asks_with_sigterm_and_returns_the_exit_code() -> None:
    with LocalCluster(3, command=COMMAND) as cluster:
        assert cluster.stop(1) == 0
        assert not cluster.is_running(1)


def test_a_failed_broker_is_reported_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_BROKER", "exit")
    with pytest.raises(LocalClusterError, match=r"broker 1 exited with code 3[\s\S]*full of bees"):
        LocalCluster(3, command=COMMAND).start()


def test_a_broker_that_is_never_ready_fails_the_start_and_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_BROKER", "mute")
    cluster = LocalCluster(3, command=COMMAND, timeout_seconds=1, directory=tmp_path)
    with pytest.raises(LocalClusterError, match=r"not ready within 1 s"):
        cluster.start()
    assert not any(cluster.is_running(n) for n in cluster.broker_ids)


def test_a_cluster_that_does_not_form_reports_the_missing_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CLUSTER_SIZE", "2")
    with pytest.raises(LocalClusterError, match=r"2 of 3 brokers connected, 2 of 3 metadata voters"):
        LocalCluster(3, command=COMMAND, timeout_seconds=6).start()


def test_a_failing_block_gets_the_logs_as_a_note() -> None:
    with pytest.raises(ZeroDivisionError) as caught, LocalCluster(3, command=COMMAND):
        _ = 1 // 0
    assert any("log of broker 2" in note for note in caught.value.__notes__)


def test_an_unknown_or_dead_broker_is_refused_by_name() -> None:
    with LocalCluster(3, command=COMMAND) as cluster:
        with pytest.raises(LocalClusterError, match="no broker 9"):
            cluster.kill(9)
        cluster.kill(1)
        with pytest.raises(LocalClusterError, match="broker 1 is not running"):
            cluster.pause(1)


def test_a_refused_order_says_the_brokers_sentence() -> None:
    with LocalCluster(3, command=COMMAND) as cluster:
        with pytest.raises(LocalClusterError) as caught:
            cluster.remove_broker(1)  # the imitation does not know the order
        assert str(caught.value) == "DrainBroker was refused: Method not found!"


def test_close_kills_all_brokers_even_if_one_dies_during_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalCluster(3, command=COMMAND) as cluster:
        pids = [cluster.pid(n) for n in cluster.broker_ids]
        first = cluster._brokers[1].process
        assert first is not None

        def poll_and_die() -> None:
            """Report that the process runs, and kill it before it is signalled."""
            monkeypatch.undo()
            os.kill(first.pid, signal.SIGKILL)
            first.wait()

        monkeypatch.setattr(first, "poll", poll_and_die)
    assert not any(is_alive(pid) for pid in pids)


def test_close_does_not_wait_for_a_child_that_was_forked_in_the_meantime() -> None:
    """Such a child, of a pool of processes for example, keeps the pipe of the guard open."""
    program = textwrap.dedent(f"""
        import os, signal, time
        from raftmq.testing import LocalCluster
        with LocalCluster(3, command={COMMAND!r}):
            child = os.fork()
            if not child:
                time.sleep(600)
        print("closed", flush=True)
        os.kill(child, signal.SIGKILL)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "closed\n"


async def test_the_event_loop_runs_while_the_cluster_starts() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    async with LocalCluster(3, command=COMMAND) as cluster:
        assert turns > 10
        pid = cluster.pid(1)
    turning.cancel()
    assert not is_alive(pid)


async def test_cancelling_the_start_leaves_no_broker_and_no_file(tmp_path: Path) -> None:
    cluster = LocalCluster(3, command=COMMAND, directory=tmp_path)
    starting = asyncio.create_task(cluster.__aenter__())
    while not (tmp_path / "broker-1.log").exists():
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not any(cluster.is_running(n) for n in cluster.broker_ids)


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_brokers_end_and_files_are_removed_when_the_owner_dies(death: signal.Signals) -> None:
    program = textwrap.dedent(f"""
        import sys, time
        from raftmq.testing import LocalCluster
        with LocalCluster(3, command={COMMAND!r}) as cluster:
            print(cluster.data_dir(1).parent, *(cluster.pid(n) for n in cluster.broker_ids), flush=True)
            while True:  # a signal that comes just before an endless wait does not end it
                time.sleep(0.1)
    """)
    owner = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with owner:
        assert owner.stdout is not None
        directory, *pids = owner.stdout.readline().split()
        assert all(is_alive(int(pid)) for pid in pids)
        owner.send_signal(death)
        owner.wait(60)
    assert eventually(lambda: not any(is_alive(int(pid)) for pid in pids) and not Path(directory).exists())
