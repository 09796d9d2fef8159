"""`raftmq topic` for queue topics, against fake brokers."""

from __future__ import annotations

from tests.support.cli.queue_commands import QueueCommands, assert_refused


def test_a_queue_topic_has_one_partition_unless_more_are_requested(jobs: QueueCommands) -> None:
    created = jobs.text("topic", "create", "mails", "--kind", "queue", "-c", "lease.ms=1m", "-c", "attempts.max=9")
    assert created == "topic mails created: kind queue, partitions 1, replication factor 1\n"
    assert jobs.cluster.topics["mails"].config == {"lease.ms": "60000", "attempts.max": "9"}
    jobs.text("queue", "put", "mails", "--value", "x")
    answer = jobs.answer("topic", "create", "wide", "--kind", "queue", "-p", "3")
    assert (answer["kind"], answer["partitions"]) == ("queue", 3)


def test_the_kind_is_listed_and_described(jobs: QueueCommands) -> None:
    jobs.text("topic", "create", "events")
    rows = [line.split()[:2] for line in jobs.text("topic", "list").splitlines()[1:]]
    assert sorted(rows) == [["events", "log"], ["jobs", "queue"]]
    described = jobs.text("topic", "describe", "jobs").splitlines()
    assert described[0].endswith("kind queue")
    assert described[2].split()[-3:] == ["sync", "next", "bytes"]
    assert jobs.text("topic", "describe", "events").splitlines()[2].split()[-4:] == ["sync", "start", "end", "bytes"]


def test_topics_that_may_be_old_are_shown_with_a_warning(jobs: QueueCommands) -> None:
    assert not jobs.answer("topic", "describe", "jobs")["is_unconfirmed"]
    jobs.cluster.is_unconfirmed = True
    for command in (("list",), ("describe", "jobs")):
        done = jobs.run("topic", *command)
        assert done.returncode == 0
        assert done.stderr.startswith("warning: the answering broker could not confirm")
    assert jobs.answer("topic", "describe", "jobs")["is_unconfirmed"]
    assert [topic["is_unconfirmed"] for topic in jobs.answer("topic", "list")] == [True]


def test_the_messages_of_a_queue_are_counted_before_it_is_deleted(jobs: QueueCommands) -> None:
    jobs.text("queue", "put", "jobs", "--value", "x")
    jobs.text("queue", "put", "jobs", "--value", "y", "--delay", "1h")
    done = jobs.run("topic", "delete", "jobs")
    counts = "messages of jobs: 1 ready, 1 delayed, 0 leased, 0 dead, 0 blocked"
    assert_refused(done, 2, counts, "Delete topic jobs and all of its messages?", "pass --yes")
    assert "jobs" in jobs.cluster.topics
    jobs.text("topic", "delete", "jobs", "--yes")
    assert jobs.cluster.topics == {}


def test_records_of_a_queue_cannot_be_deleted(jobs: QueueCommands) -> None:
    assert_refused(jobs.run("topic", "delete-records", "jobs", "--all"), 4, "raftmq queue purge")


def test_records_deleted_beside_a_partition_without_leader_are_not_reported_as_not_applied(jobs: QueueCommands) -> None:
    """Nothing was applied, says exit code 3."""
    jobs.cluster.create_topic("log", partitions=3)
    jobs.cluster.move_leader("log", 1, 0)
    done = jobs.run("topic", "delete-records", "log", "--before", "0", "--yes", "--timeout", "1s")
    assert_refused(done, 5, "log/1")
