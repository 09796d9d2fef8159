"""The settings of queue topics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.fsm.queue.settings import QueueSettings, validate_settings
from raftmq.fsm.queue.tenant_weights import PATTERNS_MAX
from raftmq.fsm.queue.topic_config import QUEUE_KEYS, queue_settings, reason_against_partitions
from raftmq.fsm.topic_config import TopicConfigError, check_topic_config
from raftmq.fsm.topic_kinds import QUEUE

TEXTS = st.one_of(
    st.integers(min_value=-2, max_value=1 << 64).map(str),
    st.sampled_from(["", "true", "false", "none", "weighted", "quiet_first", "a=1,b.*=7", "a=0", "a", "=1", "*=1000"]),
    st.text(),
)


def test_a_topic_without_settings_has_those_of_a_new_partition() -> None:
    assert queue_settings({}) == QueueSettings()


def test_each_setting_reaches_the_state_machine() -> None:
    config = {
        "attempts.max": "5", "backoff.base.ms": "1000", "backoff.factor.percent": "150", "backoff.max.ms": "60000",
        "backoff.jitter.percent": "20", "lease.max.ms": "90000", "message.ttl.ms": "3600000", "expired.keep": "true",
        "dedupe.window.ms": "300000", "ordered.by.key": "true", "fairness": "weighted", "tenant.weights": "acme=5,acme.*=2",
        "partition.max.leased": "100", "partition.tenant.max.leased": "10", "partition.tenant.rate": "50", "partition.tenant.burst": "7",
    }  # fmt: skip
    check_topic_config(config, QUEUE)
    assert queue_settings(config) == QueueSettings(
        attempts_max=5, backoff_base_ms=1000, backoff_factor_percent=150, backoff_max_ms=60_000, backoff_jitter_percent=20,
        lease_ms_max=90_000, message_ttl_ms=3_600_000, is_expired_kept=True, dedupe_window_ms=300_000, is_ordered_by_key=True,
        fairness="weighted", tenant_weights=(("acme", 5), ("acme.*", 2)), leased_max=100, leased_per_tenant_max=10,
        tenant_rate_per_second=50, tenant_rate_burst=7,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("expired.keep", "yes", "true or false"),
        ("ordered.by.key", "", "true or false"),
        ("fairness", "fair", "one of none, round_robin, weighted, quiet_first"),
        ("tenant.weights", "acme", "a list such as"),
        ("tenant.weights", "acme=1001", "weights between 1 and 1000"),
        ("tenant.weights", "=3", "a list such as"),
        ("tenant.weights", "acme=x", "a list such as"),
        ("tenant.weights", ",".join(f"t{n}=1" for n in range(PATTERNS_MAX + 1)), f"at most {PATTERNS_MAX} patterns"),
        ("tenant.weights", "x" * 2000 + "=1", "a list such as"),
        ("backoff.factor.percent", "99", "a number between 100 and 10000"),
        ("lease.ms", "999", "a number between 1000 and"),
        ("lease.max.ms", "999", "a number between 1000 and"),
    ],
)
def test_a_refusal_says_what_is_accepted(name: str, text: str, accepted: str) -> None:
    with pytest.raises(TopicConfigError, match=accepted):
        check_topic_config({name: text}, QUEUE)


@given(config=st.dictionaries(st.sampled_from([key.name for key in QUEUE_KEYS]), TEXTS))
def test_the_machine_accepts_whatever_is_read_from_a_configuration(config: dict[str, str]) -> None:
    assert validate_settings(queue_settings(config)) is None


def test_topics_that_remember_keys_or_ids_by_partition_get_no_more_partitions() -> None:
    assert "ordered.by.key" in reason_against_partitions({"ordered.by.key": "true"})
    assert "dedupe.window.ms" in reason_against_partitions({"dedupe.window.ms": "1000"})
    without_settings = {"ordered.by.key": "false", "dedupe.window.ms": "0", "fairness": "weighted"}
    assert "id of an unfinished message" in reason_against_partitions(without_settings)
