"""Names and configuration of topics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.fsm import codes
from raftmq.fsm.config_keys import is_topic_name
from raftmq.fsm.topic_config import (
    CONFIG_KEYS,
    TopicConfig,
    TopicConfigError,
    check_topic_config,
    check_topic_config_changes,
    check_topic_name,
    config_keys,
    effective_config,
    effective_config_texts,
)
from raftmq.fsm.topic_kinds import LOG, QUEUE, TOPIC_KINDS


@pytest.mark.parametrize("name", ["a", "flights", "A.b_c-9", "x" * 249, "...", "_x"])
def test_good_names(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "__consumer_offsets", "__"])
def test_bad_names(name: str) -> None:
    with pytest.raises(TopicConfigError) as caught:
        check_topic_name(name)
    assert caught.value.code == codes.INVALID_TOPIC_NAME


def test_a_reserved_name_is_a_name() -> None:
    assert is_topic_name("__internal")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"retention.ms": "-1", "retention.bytes": "0", "max.batch.bytes": "1024"},
        {"retention.ms": str(2**63 - 1), "max.batch.bytes": "3670016"},
    ],
)
def test_good_configuration(config: dict[str, str]) -> None:
    check_topic_config(config, LOG)


@pytest.mark.parametrize(
    "config",
    [
        {"retention.ms": "-2"},
        {"retention.ms": str(2**63)},
        {"retention.ms": "9" * 5000},
        {"retention.ms": ""},
        {"retention.ms": "1e3"},
        {"retention.ms": "٣"},
        {"retention.ms": " 1"},
        {"retention.ms": "1\n"},
        {"max.batch.bytes": "1023"},
        {"max.batch.bytes": "3670017"},
    ],
)
def test_bad_values(config: dict[str, str]) -> None:
    with pytest.raises(TopicConfigError) as caught:
        check_topic_config(config, LOG)
    assert caught.value.code == codes.INVALID_CONFIG
    assert effective_config(config) == TopicConfig(), "and readers act on the default"


def test_an_unknown_key_is_refused_with_the_most_similar_key_or_the_valid_ones() -> None:
    with pytest.raises(TopicConfigError, match=r"did you mean retention\.ms\?"):
        check_topic_config({"retention.mss": "1"}, LOG)
    for swapped in ("max.attempts", "max_attempts"):
        with pytest.raises(TopicConfigError, match=r"did you mean attempts\.max\?"):
            check_topic_config({swapped: "3"}, QUEUE)
    with pytest.raises(TopicConfigError, match=r"there are max\.batch\.bytes, retention\.bytes, retention\.ms"):
        check_topic_config({"xyz": "1"}, LOG)


def test_changes_may_unset_known_keys_only() -> None:
    check_topic_config_changes({"retention.ms": None, "retention.bytes": "5"}, LOG)
    for changes in ({"nope": None}, {"retention.ms": ""}, {"retention.ms": "x"}, {"nope": "1"}):
        with pytest.raises(TopicConfigError):
            check_topic_config_changes(changes, LOG)


def test_a_setting_of_another_kind_is_refused_with_its_kinds() -> None:
    wrong = "retention.ms is a setting of topics of kind 'log', and this topic is of kind 'queue'"
    with pytest.raises(TopicConfigError, match=wrong):
        check_topic_config({"retention.ms": "1"}, QUEUE)
    with pytest.raises(TopicConfigError, match=wrong):
        check_topic_config_changes({"retention.ms": None}, QUEUE)
    with pytest.raises(
        TopicConfigError, match=r"there is no setting 'xyz'; there are attempts\.max, .*, tenant\.weights$"
    ):
        check_topic_config({"xyz": "1"}, QUEUE)
    check_topic_config_changes({"max.batch.bytes": "2048"}, QUEUE)
    texts = effective_config_texts({"retention.ms": "1"}, QUEUE)
    assert "max.batch.bytes" in texts
    assert "retention.ms" not in texts


def test_every_setting_belongs_to_known_kinds() -> None:
    assert all(key.kinds and set(key.kinds) <= set(TOPIC_KINDS) for key in CONFIG_KEYS.values())


def test_defaults_are_valid_and_effective() -> None:
    for kind in (LOG, QUEUE):
        texts = effective_config_texts({"retention.ms": "5", "written.by.a.newer.version": "x"}, kind)
        check_topic_config(texts, kind)
        assert set(texts) == set(config_keys(kind))
    texts = effective_config_texts({"retention.ms": "5"}, LOG)
    assert effective_config({"retention.ms": "5"}).retention_ms == 5
    assert texts["retention.ms"] == "5"
    assert TopicConfig() == effective_config({})
    assert TopicConfig().retention_ms == 604_800_000


@given(config=st.dictionaries(st.one_of(st.sampled_from(sorted(CONFIG_KEYS)), st.text()), st.text()))
def test_reading_a_configuration_never_fails(config: dict[str, str]) -> None:
    effective_config(config)
    assert set(effective_config_texts(config, LOG)) == set(config_keys(LOG))


def test_a_topics_own_setting_wins_over_the_clusters_default() -> None:
    defaults = {"retention.ms": "7", "retention.bytes": "9", "log_level": "debug"}
    found = effective_config({"retention.ms": "5"}, defaults)
    assert (found.retention_ms, found.retention_bytes) == (5, 9)
    texts = effective_config_texts({"retention.ms": "5"}, LOG, defaults)
    assert (texts["retention.ms"], texts["retention.bytes"]) == ("5", "9")
    assert "log_level" not in texts
    assert effective_config({}, {"retention.ms": "of a newer version"}) == TopicConfig()
