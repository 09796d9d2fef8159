"""The parts of the jobs that need no Spark: options, findings and error messages."""

from __future__ import annotations

import json
import re
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from raftmq.client.admin.recovery import PartitionRecovery
from raftmq.errors import BootstrapError, DeliveryTimeoutError, TopicKindMismatchError
from raftmq.spark.errors import InvalidOptionError, RecordsLostError
from raftmq.spark.jobs import main
from raftmq.spark.jobs.audit import Findings, _check_recoveries, _offset_violations
from raftmq.spark.jobs.main import parser
from raftmq.spark.jobs.mirror import MirrorSettings, prepare_target
from raftmq.spark.jobs.running import EXIT_USAGE, MESSAGE_CHARACTERS_MAX, Stop, check_topics, explain, names_of

from tests.support.spark.model_brokers import model_brokers


@pytest.mark.parametrize(
    ("row", "start", "end", "expected"),
    [
        (None, -2, 0, {}),
        (None, -2, 7, {}),
        (None, 7, 7, {}),
        (None, 5, 7, {"missing_offsets": 2}),
        ({"records": 5, "distinct_offsets": 5, "first": 3, "last": 7}, -2, 8, {}),
        ({"records": 5, "distinct_offsets": 5, "first": 3, "last": 7}, 3, 8, {}),
        ({"records": 5, "distinct_offsets": 5, "first": 3, "last": 7}, 2, 8, {"missing_offsets": 1}),
        ({"records": 5, "distinct_offsets": 5, "first": 3, "last": 7}, 3, 9, {"missing_offsets": 1}),
        (
            {"records": 5, "distinct_offsets": 4, "first": 3, "last": 7},
            3,
            8,
            {"missing_offsets": 1, "repeated_offsets": 1},
        ),
    ],
)
def test_missing_and_repeated_offsets_are_counted_separately(row, start, end, expected):
    assert _offset_violations(row, start, end) == expected


@pytest.mark.parametrize("job", ["archive", "compact", "replay", "audit", "mirror"])
def test_each_job_has_help(job, capsys):
    with pytest.raises(SystemExit) as ended:
        parser().parse_args([job, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "--master" in said
    options = re.split(r"\n  (?=-)", said.partition("options:\n")[2])
    assert [option for option in options if len(option.split("  ")) < 2] == []  # each option has a description


def test_spark_settings_are_given_as_name_and_value():
    found = parser().parse_args(["compact", "--archive", "a", "--conf", "x=1", "--conf", "y=a=b"])
    assert dict(found.conf) == {"x": "1", "y": "a=b"}
    with pytest.raises(SystemExit):
        parser().parse_args(["compact", "--archive", "a", "--conf", "x"])


@pytest.mark.parametrize(
    "words",
    [
        ["compact", "--archive", "a", "--small-mib", "0"],
        ["replay", "--bootstrap-servers", "s", "--archive", "a", "--checkpoint", "c", "--tasks", "-1"],
        ["compact", "--archive", "a", "--small-mib", "many"],
        ["archive", "--bootstrap-servers", "s", "--topics", "t", "--to", "a", "--continuous", "nan"],
        ["archive", "--bootstrap-servers", "s", "--topics", "t", "--to", "a", "--continuous", "often"],
    ],
)
def test_numbers_that_are_invalid_or_out_of_range_are_refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words)
    assert ended.value.code == 2
    assert f"not {words[-1]!r}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["archive", "--bootstrap-servers", "s", "--topics", "t", "--to", "a"], "subscribe"),
        (["mirror", "--from", "s", "--to", "s", "--topics", "t", "--checkpoint", "c"], "INCLUDEHEADERS"),
        (["audit", "--bootstrap-servers", "s", "--topics", "t"], "startingOffsets"),
        (["audit", "--bootstrap-servers", "s", "--topics", "t"], "endingOffsetsByTimestamp"),
        (["replay", "--bootstrap-servers", "s", "--archive", "a", "--checkpoint", "c"], "writerEpoch"),
    ],
)
def test_an_option_that_the_job_sets_itself_is_refused(words, option, capsys):
    with pytest.raises(SystemExit) as ended:
        parser().parse_args([*words, "--option", f"{option}=x"])
    assert ended.value.code == 2
    assert f"{option} is set by the job itself" in capsys.readouterr().err
    assert parser().parse_args([*words, "--option", "requestTimeoutMs=x"]).option == [("requestTimeoutMs", "x")]


@pytest.mark.parametrize(
    "option",
    [
        "startingoffsets=LATEST",
        'startingOffsets={"t": {"0": 5, "1": -1}}',
        "startingOffsetsByTimestampStrategy=latest",
    ],
)
def test_an_archive_does_not_begin_at_the_latest_offset(option, capsys):
    words = ["archive", "--bootstrap-servers", "s", "--topics", "t", "--to", "a", "--option"]
    with pytest.raises(SystemExit):
        parser().parse_args([*words, option])
    assert "would leave records out" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["earliest", '{"t": {"0": -2, "1": 1}}'])
def test_an_archive_begins_at_known_offsets(value):
    words = ["archive", "--bootstrap-servers", "s", "--topics", "t", "--to", "a", "--option"]
    assert parser().parse_args([*words, f"startingOffsets={value}"]).option == [("startingOffsets", value)]


def test_repeated_and_blank_topic_names_are_ignored():
    assert names_of(" a,b, ,a") == ("a", "b")
    with pytest.raises(InvalidOptionError):
        names_of(" ,")


SPARK_SAYS = """An error occurred while calling o52.save.
: org.apache.spark.SparkException: Job aborted
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "sink.py", line 87, in write
raftmq.errors.UnknownTopicError: there is no topic 'nowhere'
\tat org.apache.spark.Task.run(Task.scala:147)
Caused by: java.lang.IllegalStateException: closed
"""


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InvalidOptionError("no such topic"), 2, "InvalidOptionError: no such topic"),
        (BootstrapError("no broker answered"), 3, "BootstrapError: no broker answered"),
        (RecordsLostError("gone"), 4, "RecordsLostError: gone"),
        (DeliveryTimeoutError("may be written"), 5, "DeliveryTimeoutError: may be written"),
        (RuntimeError(SPARK_SAYS), 2, "raftmq.errors.UnknownTopicError: there is no topic 'nowhere'"),
        (RuntimeError(SPARK_SAYS.replace("UnknownTopic", "NotReady")), 1, "raftmq.errors.NotReadyError: there is"),
        (RuntimeError(SPARK_SAYS.replace("raftmq.errors.UnknownTopic", "Value")), 1, "ValueError: there is"),
        (RuntimeError("in a gateway\n: org.apache.Bad: no such URL\n\tat x"), 1, "org.apache.Bad: no such URL"),
        (
            RuntimeError("[JAVA_GATEWAY_EXITED] Java exited."),
            1,
            "RuntimeError: [JAVA_GATEWAY_EXITED] Java exited. Spark",
        ),
        (ValueError("first\nsecond"), 1, "ValueError: first"),
        (ValueError("x" * 5000), 1, "ValueError: xxx"),
    ],
)
def test_the_error_that_ended_a_job_becomes_a_sentence_and_an_exit_code(error, code, words):
    found, sentence = explain(error)
    assert found == code
    assert sentence.startswith(words)
    assert len(sentence) <= MESSAGE_CHARACTERS_MAX


def test_a_job_without_a_session_reports_the_error_and_ends(monkeypatch, capsys):
    def refuse(*_):
        raise RuntimeError("no such cluster")

    monkeypatch.setattr(main, "open_session", refuse)
    assert main.main(["compact", "--archive", "a", "--master", "sparkk"]) == 1
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"event": "failed", "message": "RuntimeError: no such cluster"},
        {"event": "ended", "job": "compact", "exit_code": 1},
    ]


def test_jobs_refuse_queue_topics_before_they_create_anything():
    with model_brokers() as brokers:
        brokers.create_queue("q")
        servers = brokers.bootstrap_servers
        with pytest.raises(
            TopicKindMismatchError, match="'q' is a topic of kind 'queue', and jobs are for log topics"
        ) as raised:
            check_topics(servers, ["q"])
        with pytest.raises(TopicKindMismatchError, match="'q' is a topic of kind 'queue'"):
            prepare_target(MirrorSettings(servers, servers, ["q"], "copy-", {}, "unused", None))
        assert brokers.call(lambda cluster: set(cluster.topics)) == {"q"}
    assert explain(raised.value)[0] == EXIT_USAGE


def recovery(end: int, known_end: int, partition: int = 0) -> PartitionRecovery:
    return PartitionRecovery("t", partition, 2, end, known_end, (1, 3), 1000, 20)


@pytest.mark.parametrize(
    ("found", "start", "lost"),
    [
        (recovery(5, 5), -2, 0),
        (recovery(5, 9), -2, 4),
        (recovery(5, 5), 4, 0),
        (recovery(5, 5), 12, 7),
        (recovery(5, 9), 7, 4),
    ],
    ids=["no loss is known", "a replica had more", "read less than was kept", "read what is gone", "both"],
)
def test_an_audit_counts_the_records_that_a_recovery_has_lost(
    capsys: pytest.CaptureFixture[str], found: PartitionRecovery, start: int, lost: int
) -> None:
    findings, starts = Findings(), {"t": {"0": start}}
    _check_recoveries([found], starts, findings, is_accepted=False)
    said = json.loads(capsys.readouterr().out)
    assert (said["event"], said["kept_end_offset"], said["lost_records"]) == ("recovered", 5, lost)
    assert findings.violations == ({"lost_records": lost} if lost else {})
    assert starts == {"t": {"0": min(start, 5)}}, "the audit begins where the kept records end"


def test_an_accepted_recovery_is_reported_and_no_violation(capsys: pytest.CaptureFixture[str]) -> None:
    findings = Findings()
    _check_recoveries([recovery(5, 9)], {}, findings, is_accepted=True)
    assert json.loads(capsys.readouterr().out)["lost_records"] == 4
    assert findings.violations == {}


def test_each_cancelled_action_ends_its_thread():
    """A replay has an action for each entry of its archive, and each of them left a thread behind."""
    stop, is_cancelled = Stop(), threading.Event()
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(cancelAllJobs=is_cancelled.set))

    def waiting() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "cancels-jobs"]

    for _ in range(3):
        with stop.cancels(spark):
            assert waiting()
    for thread in waiting():
        thread.join(10)
    assert waiting() == []
    assert not is_cancelled.is_set()
    with stop.cancels(spark):
        stop.ask()
        assert is_cancelled.wait(10)
