"""The meaning of each option of the source, and the options that are refused."""

import warnings

import pytest
from raftmq.client.connection.leader_calls import EARLIEST_TIME, LATEST_TIME
from raftmq.spark.base.options import OptionReader
from raftmq.spark.cluster.subscriptions import Assigned, Matching, Named
from raftmq.spark.errors import InvalidOptionError, RaftMQSparkWarning
from raftmq.spark.source.options import AtOffsets, AtTimes, Everywhere, SourceOptions, read_source_options
from raftmq.types import TopicPartition

BASE = {"bootstrap.servers": "a:9400", "subscribe": "t"}


def batch(**options: str) -> SourceOptions:
    return read_source_options(BASE | options, is_streaming=False)[0]


def stream(**options: str) -> SourceOptions:
    return read_source_options(BASE | options, is_streaming=True)[0]


def test_a_job_of_the_kafka_connector_needs_no_other_options() -> None:
    found, _ = read_source_options(
        {
            "kafka.bootstrap.servers": "a:9400, b:9400",
            "subscribe": "t,u",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "100",
            "maxRecordsPerPartition": "50",
            "fetchoffset.numretries": "2",
            "fetchOffset.retryIntervalMs": "20",
            "kafka.security.protocol": "PLAINTEXT",
        },
        is_streaming=True,
    )
    assert found.client.bootstrap_servers == "a:9400,b:9400"
    assert found.subscription == Named(("t", "u"))
    assert found.starting == Everywhere(EARLIEST_TIME)
    assert found.rows_max == 100
    assert found.task_rows_max == 50
    assert (found.client.lookup_retries, found.client.lookup_pause_ms) == (2, 20)


def test_case_of_names_does_not_matter() -> None:
    found, _ = read_source_options(
        {"BOOTSTRAP.servers": "a:1", "SubScribe": "t", "includeHEADERS": "TRUE"}, is_streaming=False
    )
    assert found.include_headers


def test_defaults_equal_those_of_the_kafka_connector() -> None:
    assert batch().starting == Everywhere(EARLIEST_TIME)
    assert stream().starting == Everywhere(LATEST_TIME)
    assert batch().ending == Everywhere(LATEST_TIME)
    assert batch().fail_on_data_loss
    assert not batch().include_headers
    assert not batch().include_append_time
    assert stream().trigger_delay_max_ms == 15 * 60 * 1000
    assert stream().poll_timeout_ms == 120_000


def test_a_common_time_overrides_times_of_partitions_which_override_offsets() -> None:
    everything = {
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"t": {"0": 6}}',
        "startingOffsets": '{"t": {"0": -2}}',
    }
    assert batch(**everything).starting == Everywhere(5)
    del everything["startingTimestamp"]
    assert batch(**everything).starting == AtTimes({TopicPartition("t", 0): 6})
    del everything["startingOffsetsByTimestamp"]
    assert batch(**everything).starting == AtOffsets({TopicPartition("t", 0): -2})


def test_offsets_copied_from_a_querys_progress_are_accepted() -> None:
    """The progress of a query's first batch also contains its initial offsets."""
    progress = '"t": {"0": 3, "topic_id": 9, "group_ids": {"0": 4}}}'
    for begin in ("{", '{"@initial": {"t": {"0": 1, "topic_id": 9}}, '):
        found = batch(startingOffsets=begin + progress)
        assert found.starting == AtOffsets({TopicPartition("t", 0): 3})


def test_topics_are_selected_by_names_by_pattern_or_by_partitions() -> None:
    servers = {"bootstrap.servers": "a:1"}
    found, _ = read_source_options({**servers, "subscribePattern": "f.*"}, is_streaming=False)
    assert found.subscription == Matching("f.*")
    assert Matching("f.*").takes("flights")
    assert not Matching("f.*").takes("a-flight")
    assert not Matching(".*").takes("__internal")
    found, _ = read_source_options({**servers, "assign": '{"t": [0, 2]}'}, is_streaming=False)
    assert found.subscription == Assigned(frozenset({TopicPartition("t", 0), TopicPartition("t", 2)}))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"bootstrap.servers": ""}, "bootstrap.servers is missing"),
        ({"bootstrap.servers": "http://a"}, "not host:port"),
        ({"kafka.bootstrap.servers": "b:1"}, "both given and differ"),
        ({"subscribe": ""}, "give one of subscribe, subscribePattern and assign"),
        ({"assign": '{"t": [0]}'}, "give one of"),
        ({"subscribe": "", "subscribePattern": "("}, "not a regular expression"),
        ({"subscribe": "", "assign": "[]"}, "JSON object"),
        ({"subscribe": "", "assign": '{"t": []}'}, "are a list"),
        ({"subscribe": "", "assign": "{}"}, "no partition"),
        ({"startingOffsets": "newest"}, "earliest, latest or JSON"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "not allowed"),
        ({"startingOffsets": '{"t": {"0": true}}'}, "not allowed"),
        ({"startingOffsets": '{"t": 5}'}, "an object such as"),
        ({"startingOffsets": '{"t"'}, "not JSON"),
        ({"endingOffsets": "earliest"}, "latest or JSON"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "not allowed"),
        ({"startingTimestamp": "-1"}, "at least 0"),
        ({"startingTimestamp": "soon"}, "whole number"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "error or latest"),
        ({"maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({"minRecordsPerPartition": "0"}, "minRecordsPerPartition is at least 1"),
        ({"minRecordsPerPartition": "5", "minPartitions": "2"}, "set one of them"),
        ({"minRecordsPerPartition": "5", "maxRecordsPerPartition": "4"}, "above maxRecordsPerPartition"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition is at least 1"),
        ({"maxRecordsPerPartition": "many"}, "maxRecordsPerPartition is a whole number"),
        ({"fetchOffset.numRetries": "-1"}, "fetchOffset.numRetries is at least 0"),
        ({"fetchOffset.retryIntervalMs": "-1"}, "fetchOffset.retryIntervalMs is a duration"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "above maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "a while"}, "a duration"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"kafka.ssl.truststore.location": "x"}, "neither encryption nor authentication"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "neither encryption nor authentication"),
        ({"kafka.security.protocol": "SASL_SSL"}, "neither encryption nor authentication"),
        ({"startingOffsets": "latest"}, "always be empty"),
    ],
)
def test_invalid_options_of_a_batch_read_are_refused_with_the_reason(options: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidOptionError, match=reason):
        batch(**options)


def test_ending_offsets_of_a_stream_are_refused() -> None:
    for name, value in {"endingTimestamp": "5", "endingOffsets": "latest"}.items():
        with pytest.raises(InvalidOptionError, match="no end"):
            stream(**{name: value})


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("250", 250), ("250ms", 250), ("3 s", 3000), ("15m", 900_000), ("2h", 7_200_000)]
)
def test_a_duration_may_have_a_unit(text: str, milliseconds: int) -> None:
    assert stream(maxTriggerDelay=text).trigger_delay_max_ms == milliseconds


def test_options_without_effect_are_named_with_a_suggestion() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batch(**{"maxOfsetsPerTrigger": "5", "kafka.fetch.max.bytes": "1", "path": "x", "checkpointLocation": "y"})
    assert all(warning.category is RaftMQSparkWarning for warning in caught)
    texts = [str(warning.message) for warning in caught]
    assert texts == [
        "raftmq: the option 'maxOfsetsPerTrigger' has no effect; did you mean 'maxOffsetsPerTrigger'?",
        "raftmq: the option 'kafka.fetch.max.bytes' has no effect",
    ]


def test_an_option_without_effect_is_named_once_per_process() -> None:
    """Spark creates several readers from the same options."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")  # Python's default, which Spark's worker processes use
        for _ in range(3):
            batch(**{"kafka.max.poll.records": "5"})
            stream(**{"kafka.max.poll.records": "5"})
    assert [str(warning.message) for warning in caught] == ["raftmq: the option 'kafka.max.poll.records' has no effect"]


def test_names_of_groups_and_clients_are_accepted_as_the_connector_does() -> None:
    """The Kafka connector ignores the prefix if a group is named."""
    names = {"kafka.group.id": "g", "groupIdPrefix": "p", "kafka.client.id": "c"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert stream(**names) == stream()


def test_settings_of_the_client_have_two_names() -> None:
    reader = OptionReader({"kafka.request.timeout.ms": "5000", "client.id": "me"})
    assert reader.setting_integer("request.timeout.ms", 1) == 5000
    assert reader.setting("client.id") == "me"
    assert list(reader.asked) == ["request.timeout.ms", "kafka.request.timeout.ms", "client.id", "kafka.client.id"]
