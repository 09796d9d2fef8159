"""`raftmq dlq` with a real broker: letters are listed, shown, sent back once and purged, even if a redrive is killed."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from raftmq import Record, Worker, sync
from raftmq.client.base import settings
from raftmq.client.connection.resolver import TopicInfo
from raftmq.client.dead_letters.redrive_ledger import RedriveLedger
from raftmq.client.dead_letters.redrive_ledgers import RedriveLedgers, StoredLedger
from raftmq.client.dead_letters.topic import DeadLetterTopic
from raftmq.client.producer.sequenced_append import SequencedAppender
from raftmq.errors import NoLeaderError
from raftmq.testing import LocalCluster

from tests.support.e2e.raftmq_command import answer, assert_one_sentence, lines_of, raftmq, started

pytestmark = [pytest.mark.e2e]

PREFIX = "raftmq.dead_letter."


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as running:
        yield running


@pytest.fixture
def source(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """Create a topic with two partitions and return its name. Its dead-letter topic `<name>.dead` has one partition."""
    name = f"dlq-{abs(hash(request.node.nodeid))}"
    with sync.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(name, partitions=2, replication_factor=1)
        admin.create_topic(f"{name}.dead", partitions=1, replication_factor=1)
    return name


def headers(source: str, number: int, error: str = "ValueError", **more: str) -> list[tuple[str, bytes]]:
    """Return headers as a worker writes them."""
    said = {
        "group": "billing",
        "topic": source,
        "partition": str(number % 2),
        "offset": str(number),
        "timestamp": "1700000000000",
        "attempts": "3",
        "error": error,
        "message": f"no good: {number}",
        "time": str(1_700_000_000_000 + number),
        **more,
    }
    return [("trace", b"%d" % number), *((PREFIX + name, text.encode()) for name, text in said.items())]


def bury(cluster: LocalCluster, source: str, numbers: range, error: str = "ValueError", **more: str) -> None:
    """Write letters to the dead-letter topic."""
    with sync.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for n in numbers:
            sent = producer.send(
                f"{source}.dead", b"v%d" % n, key=b"k%d" % (n % 3), headers=headers(source, n, error, **more)
            )
        sent.result(30)


def returned(cluster: LocalCluster, source: str) -> list[dict[str, Any]]:
    """Return the records that were sent back, with their partitions."""
    return lines_of(cluster, source, "--from-beginning")


def values(records: list[dict[str, Any]]) -> list[str]:
    return [record["value"] for record in records]


def waiting(cluster: LocalCluster, source: str) -> int:
    found = answer(cluster, "dlq", "list")
    assert isinstance(found, list)
    return next((one["waiting"] for one in found if one["topic"] == f"{source}.dead"), 0)


def shown(cluster: LocalCluster, source: str, *arguments: str) -> list[dict[str, Any]]:
    done = raftmq(cluster, "dlq", "show", f"{source}.dead", "-o", "json", *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_topics_of_queues_do_not_keep_letters_from_being_listed(cluster: LocalCluster, source: str) -> None:
    with sync.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(f"{source}.jobs", replication_factor=1, kind="queue")
        bury(cluster, source, range(2))
        assert waiting(cluster, source) == 2
        admin.delete_topic(f"{source}.jobs")


def test_the_letters_of_a_worker_are_listed_shown_and_sent_back(cluster: LocalCluster, source: str) -> None:
    with sync.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send(source, b"poison", key=b"k", headers=[("trace", b"7")]).result(30)

    tries: list[int] = []

    def fail(record: Record) -> None:
        tries.append(record.offset)
        raise ValueError("no good")

    dead = f"{source}.dead"
    worker = Worker(
        source, source, fail, retries=0, dead_letter_topic=dead, bootstrap_servers=cluster.bootstrap_servers
    )

    async def work() -> None:
        serving = asyncio.create_task(worker.serve())
        while not await asyncio.to_thread(waiting, cluster, source):
            await asyncio.sleep(0.05)
        worker.stop()
        await serving

    asyncio.run(work())
    (letter,) = shown(cluster, source)
    assert (letter["from_topic"], letter["from_offset"], letter["group"], letter["attempts"]) == (source, 0, source, 1)
    assert (letter["key"], letter["value"], letter["headers"]) == ("k", "poison", [["trace", "7"]])
    assert "ValueError" in letter["error"]
    assert letter["message"] == "no good"
    done = raftmq(cluster, "dlq", "redrive", dead, "--yes")
    assert done.returncode == 0, done.stderr
    assert b"1 record will go back to" in done.stderr
    assert done.stdout == f"1 record of {dead} sent back\n".encode()
    first, again = returned(cluster, source)
    assert again == first | {"offset": 1}
    assert waiting(cluster, source) == 0
    assert lines_of(cluster, dead, "--from-beginning") == []


def test_letters_go_back_to_their_partitions_in_order_and_once(cluster: LocalCluster, source: str) -> None:
    bury(cluster, source, range(40))
    assert waiting(cluster, source) == 40
    redrive = ("dlq", "redrive", f"{source}.dead", "--yes")
    assert answer(cluster, *redrive) == {"topic": f"{source}.dead", "chosen": 40, "redriven": 40}
    found = returned(cluster, source)
    for partition in (0, 1):
        mine = [record for record in found if record["partition"] == partition]
        assert values(mine) == [f"v{n}" for n in range(partition, 40, 2)]
        assert [record["headers"] for record in mine] == [[["trace", str(n)]] for n in range(partition, 40, 2)]
        assert [record["key"] for record in mine] == [f"k{n % 3}" for n in range(partition, 40, 2)]
    assert answer(cluster, *redrive) == {"topic": f"{source}.dead", "chosen": 0, "redriven": 0}
    assert len(returned(cluster, source)) == 40


def test_filtered_letters_are_sent_back_and_the_others_stay(cluster: LocalCluster, source: str) -> None:
    bury(cluster, source, range(10))
    bury(cluster, source, range(10, 20), error="TimeoutError", group="shipping")
    assert len(shown(cluster, source, "--error", "*Timeout*")) == 10
    assert len(shown(cluster, source, "--group", "billing", "--key", "k1")) == 3
    assert [one["offset"] for one in shown(cluster, source, "--header", "trace=12")] == [12]
    assert len(shown(cluster, source, "--since", str(1_700_000_000_015))) == 5
    assert len(shown(cluster, source, "-n", "2")) == 2
    redrive = ("dlq", "redrive", f"{source}.dead", "--yes")
    assert raftmq(cluster, *redrive, "--error", "Timeout*", "-n", "4").returncode == 0
    assert sorted(values(returned(cluster, source))) == ["v10", "v11", "v12", "v13"]
    assert raftmq(cluster, *redrive, "--partition", "0", "--offset", "3").returncode == 0
    assert waiting(cluster, source) == 15
    assert [one["offset"] for one in shown(cluster, source)] == [0, 1, 2, *range(4, 10), *range(14, 20)]
    assert raftmq(cluster, *redrive).returncode == 0
    assert Counter(values(returned(cluster, source))) == {f"v{n}": 1 for n in range(20)}
    assert waiting(cluster, source) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_redrive_continues_and_sends_nothing_twice(
    cluster: LocalCluster, source: str, number: signal.Signals
) -> None:
    bury(cluster, source, range(60))
    redrive = ("dlq", "redrive", f"{source}.dead", "--yes")
    with started(cluster, *redrive, "--rate", "1/s") as running:
        while not (found := returned(cluster, source)):
            assert running.poll() is None
        running.send_signal(number)
        assert running.wait(30) == (130 if number is signal.SIGINT else -number)
    assert 0 < len(found) < 60
    assert raftmq(cluster, *redrive).returncode == 0
    assert Counter(values(returned(cluster, source))) == {f"v{n}": 1 for n in range(60)}
    assert waiting(cluster, source) == 0


@pytest.mark.parametrize(
    "step", [step if step % 2 else pytest.param(step, marks=pytest.mark.long) for step in range(1, 7)]
)
def test_a_crash_at_each_step_of_the_ledger_sends_nothing_twice(
    cluster: LocalCluster, source: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No letter is sent before the ledger has its chunk.

    After a crash, letters that may have been written are sent again with the same sequence numbers.
    """
    bury(cluster, source, range(9))
    monkeypatch.setattr(settings, "REDRIVE_CHUNK_RECORDS_MAX", 3)
    replace, calls = RedriveLedgers.replace, 0

    async def crash_at_step(self: RedriveLedgers, stored: StoredLedger, ledger: RedriveLedger) -> StoredLedger:
        nonlocal calls
        calls += 1
        if calls == step:
            raise KeyboardInterrupt
        return await replace(self, stored, ledger)

    redrive = ("dlq", "redrive", f"{source}.dead", "--yes")
    with monkeypatch.context() as patched:
        patched.setattr(RedriveLedgers, "replace", crash_at_step)
        assert raftmq(cluster, *redrive).returncode == 130
    written = (step // 2) * 3
    assert len(returned(cluster, source)) == written
    assert raftmq(cluster, *redrive).returncode == 0
    assert Counter(values(returned(cluster, source))) == {f"v{n}": 1 for n in range(9)}


def test_two_simultaneous_redrives_send_each_letter_back_once(cluster: LocalCluster, source: str) -> None:
    bury(cluster, source, range(100))
    redrive = ("dlq", "redrive", f"{source}.dead", "--yes", "--rate", "40/s")
    with started(cluster, *redrive) as first, started(cluster, *redrive) as second:
        codes = {first.wait(60), second.wait(60)}
    assert codes <= {0, 4, 5}, "one may be taken over: before it has sent a letter back (4), or after (5)"
    assert raftmq(cluster, *redrive).returncode == 0
    assert Counter(values(returned(cluster, source))) == {f"v{n}": 1 for n in range(100)}


def test_a_redrive_is_no_faster_than_its_rate(cluster: LocalCluster, source: str) -> None:
    bury(cluster, source, range(30))
    began = time.monotonic()
    assert raftmq(cluster, "dlq", "redrive", f"{source}.dead", "--yes", "--rate", "10/s").returncode == 0
    assert time.monotonic() - began >= 3.0
    assert len(returned(cluster, source)) == 30


def test_letters_that_cannot_be_sent_back_stay_and_are_reported(cluster: LocalCluster, source: str) -> None:
    bury(cluster, source, range(3))
    bury(cluster, source, range(3, 5), topic="gone")
    bury(cluster, source, range(5, 6), value_bytes="1048000")
    done = raftmq(cluster, "dlq", "redrive", f"{source}.dead", "--yes")
    assert done.returncode == 0, done.stderr
    assert b"1 record not sent: gone/0 does not exist" in done.stderr
    assert b"1 record not sent: the value was too large" in done.stderr
    assert done.stdout == f"3 records of {source}.dead sent back\n".encode()
    assert waiting(cluster, source) == 3


def test_malformed_headers_do_not_block_other_letters(cluster: LocalCluster, source: str) -> None:
    bury(cluster, source, range(2))
    bury(cluster, source, range(2, 3), topic="no name/\x1b[31m")
    bury(cluster, source, range(3, 4), partition="-1")
    bury(cluster, source, range(4, 5), message="\x1b[31mred")
    done = raftmq(cluster, "dlq", "show", f"{source}.dead")
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout
    done = raftmq(cluster, "dlq", "redrive", f"{source}.dead", "--yes")
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stderr
    assert f"{source}/-1 does not exist".encode() in done.stderr
    assert sorted(values(returned(cluster, source))) == ["v0", "v1", "v4"]
    assert [one["offset"] for one in shown(cluster, source)] == [2, 3]


def test_a_letter_above_a_lowered_batch_limit_does_not_block_other_letters(cluster: LocalCluster, source: str) -> None:
    """A chunk that contains it would be refused each time, including its other letters."""
    with sync.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for n, size in enumerate((10, 5000, 10)):
            producer.send(f"{source}.dead", b"v" * size, headers=headers(source, 2 * n)).result(30)
    alter = ("topic", "alter", source, "--config")
    assert raftmq(cluster, *alter, "max.batch.bytes=2048").returncode == 0
    done = raftmq(cluster, "dlq", "redrive", f"{source}.dead", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"1 record not sent: {source} no longer accepts batches of this size".encode() in done.stderr
    assert len(returned(cluster, source)) == 2
    assert raftmq(cluster, *alter, "max.batch.bytes=1048576").returncode == 0
    assert answer(cluster, "dlq", "redrive", f"{source}.dead", "--yes") == {
        "topic": f"{source}.dead",
        "chosen": 1,
        "redriven": 1,
    }


def test_small_records_with_many_headers_fit_the_batches_of_their_topic(cluster: LocalCluster, source: str) -> None:
    assert raftmq(cluster, "topic", "alter", source, "--config", "max.batch.bytes=4096").returncode == 0
    few: list[tuple[str, bytes]] = [("h", b"")] * 20
    with sync.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for n in range(100):
            sent = producer.send(f"{source}.dead", None, headers=few + headers(source, 2 * n))
        sent.result(30)
    done = raftmq(cluster, "dlq", "redrive", f"{source}.dead", "--yes")
    assert done.returncode == 0, done.stderr
    assert len(returned(cluster, source)) == 100


async def test_reading_letters_does_not_time_out_while_the_caller_handles_one(
    cluster: LocalCluster, source: str
) -> None:
    """A redrive at two records a minute is such a slow caller."""
    bury(cluster, source, range(3))
    seconds = 5.0
    topic = DeadLetterTopic(f"{source}.dead", bootstrap_servers=cluster.bootstrap_servers, timeout_seconds=seconds)
    found = []
    async with topic:
        async for letter in topic.waiting(await topic.count()):
            found.append(letter.record.value)
            if len(found) == 3:  # the last letter of a poll
                await asyncio.sleep(seconds + 0.1)
    assert found == [b"v0", b"v1", b"v2"]


def redrive_and_crash(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, *redrive: str) -> None:
    """Redrive until the first letters are sent, and crash before the ledger says so."""
    replace, calls = RedriveLedgers.replace, 0

    async def crash_after_sending(self: RedriveLedgers, stored: StoredLedger, ledger: RedriveLedger) -> StoredLedger:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return await replace(self, stored, ledger)

    with monkeypatch.context() as patched:
        patched.setattr(RedriveLedgers, "replace", crash_after_sending)
        assert raftmq(cluster, *redrive).returncode == 130


def test_redriving_one_record_first_completes_an_interrupted_redrive(
    cluster: LocalCluster, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letters that were in flight are sent regardless of the next choice, because their sequence numbers are assigned."""
    bury(cluster, source, range(9))
    redrive = ("dlq", "redrive", f"{source}.dead", "--yes")
    redrive_and_crash(cluster, monkeypatch, *redrive, "--max-records", "6")
    assert raftmq(cluster, *redrive, "--partition", "0", "--offset", "8").returncode == 0
    assert Counter(values(returned(cluster, source))) == {f"v{n}": 1 for n in (*range(6), 8)}
    assert [one["offset"] for one in shown(cluster, source)] == [6, 7]


def test_letters_of_an_interrupted_redrive_are_in_doubt_if_some_of_them_were_deleted(
    cluster: LocalCluster, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sequence numbers of the others are then unknown, so a repetition could not be recognized."""
    bury(cluster, source, range(6))
    redrive = ("dlq", "redrive", f"{source}.dead", "--yes")
    redrive_and_crash(cluster, monkeypatch, *redrive)
    assert raftmq(cluster, "topic", "delete-records", f"{source}.dead", "--before", "2", "--yes").returncode == 0
    done = raftmq(cluster, *redrive)
    assert done.returncode == 0
    assert b"4 records of an interrupted redrive may have been sent and will be chosen again" in done.stderr


def test_a_partition_that_is_deleted_while_the_command_asks_is_reported(cluster: LocalCluster, source: str) -> None:
    bury(cluster, source, range(2))
    with started(cluster, "dlq", "redrive", f"{source}.dead") as redrive:
        assert redrive.stderr is not None
        while not redrive.stderr.readline().startswith(b"2 records will go back"):
            pass
        assert raftmq(cluster, "topic", "delete", source, "--yes").returncode == 0
        told = redrive.communicate(b"y\n", timeout=60)[1].decode()
    assert redrive.returncode == 0, told
    assert f"1 record not sent: {source}/0 does not exist" in told
    assert waiting(cluster, source) == 2


def test_max_records_counts_only_letters_that_can_be_sent_back(cluster: LocalCluster, source: str) -> None:
    bury(cluster, source, range(2), topic="gone")
    bury(cluster, source, range(2, 6))
    chosen = answer(cluster, "dlq", "redrive", f"{source}.dead", "--yes", "--max-records", "3")
    assert chosen == {"topic": f"{source}.dead", "chosen": 3, "redriven": 3}
    assert sorted(values(returned(cluster, source))) == ["v2", "v3", "v4"]


def test_purge_removes_the_chosen_letters_or_all(cluster: LocalCluster, source: str) -> None:
    dead = f"{source}.dead"
    bury(cluster, source, range(4))
    bury(cluster, source, range(4, 6), error="TimeoutError")
    assert answer(cluster, "dlq", "purge", dead, "--dry-run") == {"topic": dead, "chosen": 6, "purged": 0}
    chosen = answer(cluster, "dlq", "purge", dead, "--error", "TimeoutError", "--yes")
    assert chosen == {"topic": dead, "chosen": 2, "purged": 2}
    assert [one["offset"] for one in shown(cluster, source)] == [0, 1, 2, 3]
    done = raftmq(cluster, "dlq", "purge", dead, "--yes")
    assert (done.returncode, done.stdout) == (0, f"4 records of {dead} purged\n".encode())
    assert shown(cluster, source) == []
    assert lines_of(cluster, dead, "--from-beginning") == []
    assert returned(cluster, source) == []


def test_a_redrive_or_purge_done_in_part_is_not_reported_as_not_applied(
    cluster: LocalCluster, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with exit code 3, which promises that nothing was applied, and did not tell the number of records."""
    dead = f"{source}.dead"
    bury(cluster, source, range(5))
    append = SequencedAppender.append

    async def append_to_0(
        appender: SequencedAppender, info: TopicInfo, partition: int, batches: list[bytes]
    ) -> list[int]:
        if partition == 1:
            raise NoLeaderError(f"{source}/1 has no leader")
        return await append(appender, info, partition, batches)

    with monkeypatch.context() as patched:
        patched.setattr(SequencedAppender, "append", append_to_0)
        done = raftmq(cluster, "dlq", "redrive", dead, "--yes")
    assert (done.returncode, done.stdout) == (5, b"")
    assert b"3 records of %b sent back; run the command again to continue\n" % dead.encode() in done.stderr
    assert answer(cluster, "dlq", "redrive", dead, "--yes")["redriven"] == 5
    assert Counter(values(returned(cluster, source))) == {f"v{n}": 1 for n in range(5)}

    async def refuse(*_: object) -> None:
        raise NoLeaderError(f"{dead}/0 has no leader")

    bury(cluster, source, range(5, 7))
    with monkeypatch.context() as patched:
        patched.setattr("raftmq.client.dead_letters.topic.delete_records", refuse)
        assert raftmq(cluster, "dlq", "purge", dead, "--yes").returncode == 3
        done = raftmq(cluster, "dlq", "purge", dead, "--error", "*", "--yes")
    assert done.returncode == 5
    assert b"2 records of %b purged; run the command again to continue\n" % dead.encode() in done.stderr


def test_a_topic_that_is_not_for_dead_letters_is_refused(cluster: LocalCluster, source: str) -> None:
    with sync.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send(source, b"an order", partition=0).result(30)
    purge, redrive = ("purge", source, "--yes"), ("redrive", source, "--yes")
    for arguments in (
        ("show", source),
        ("show", source, "--output", "json"),
        purge,
        (*purge, "--partition", "0"),
        (*purge, "--error", "*"),
        redrive,
        (*redrive, "--dry-run"),
    ):
        done = raftmq(cluster, "dlq", *arguments)
        assert_one_sentence(done, 4, f"{source} is not a dead-letter topic")
        assert done.stdout == b""
    assert values(returned(cluster, source)) == ["an order"]
    assert answer(cluster, "dlq", "purge", f"{source}.dead", "--yes") == {
        "topic": f"{source}.dead", "chosen": 0, "purged": 0
    }  # fmt: skip


def test_letters_below_the_records_of_another_program_are_shown(cluster: LocalCluster, source: str) -> None:
    """The topic does not look like one for dead letters, but the answer is not empty."""
    bury(cluster, source, range(1))
    with sync.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send(f"{source}.dead", b"a stray record", partition=0).result(30)
    assert [one["offset"] for one in shown(cluster, source)] == [0]
    assert answer(cluster, "dlq", "redrive", f"{source}.dead", "--yes", "--error", "nothing*")["chosen"] == 0


def test_redrive_and_purge_show_a_preview_before_the_question(cluster: LocalCluster, source: str) -> None:
    bury(cluster, source, range(3))
    for command, preview in (("redrive", "3 records will go back to"), ("purge", "3 records of")):
        declined = raftmq(cluster, "dlq", command, f"{source}.dead", stdin=b"n\n")
        assert declined.returncode == 130
        said = declined.stderr.decode()
        assert said.index(preview) < said.index("[y/N]")
    assert waiting(cluster, source) == 3


def test_an_unknown_topic_partition_or_record_is_one_sentence(cluster: LocalCluster, source: str) -> None:
    assert_one_sentence(raftmq(cluster, "dlq", "show", "none"), 4, "'none'")
    assert raftmq(cluster, "dlq", "show", f"{source}.dead", "--offset", "3").returncode == 2
    for arguments in (("--partition", "1"), ("--partition", "0", "--offset", "0")):
        assert_one_sentence(raftmq(cluster, "dlq", "show", f"{source}.dead", *arguments), 4)


def test_letters_of_a_topic_that_is_a_queue_now_do_not_block_others(cluster: LocalCluster, source: str) -> None:
    """The queue refused the whole chunk, which every later redrive began with."""
    with sync.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(f"{source}.queue", replication_factor=1, kind="queue")
    bury(cluster, source, range(2))
    bury(cluster, source, range(2, 3), topic=f"{source}.queue")
    done = raftmq(cluster, "dlq", "redrive", f"{source}.dead", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"1 record not sent: {source}.queue/0 does not exist as a log".encode() in done.stderr
    assert sorted(values(returned(cluster, source))) == ["v0", "v1"]
