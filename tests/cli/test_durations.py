"""Durations, rates and times as people write and read them."""

from __future__ import annotations

import pytest
import typer
from raftmq.cli.durations import Duration, DurationRange, format_duration, parse_duration
from raftmq.cli.rates import Rate, parse_rate
from raftmq.cli.times import format_time, parse_past, parse_time_ms
from raftmq.cli.topic_settings import parse_settings


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("20s", 20), ("1.5m", 90), ("2h", 7200), ("7d", 604_800), ("1h30m", 5400), ("1m30s", 90)],
)
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert DurationRange(0, 10**6)(text) == seconds


def test_a_topic_setting_takes_a_time_with_a_unit() -> None:
    pairs = ["retention.ms=1h30m", "message.ttl.ms=0s", "lease.ms=0.6ms", "backoff.max.ms=500", "name=1s"]
    assert parse_settings(pairs) == {
        "retention.ms": "5400000",
        "message.ttl.ms": "0",
        "lease.ms": "1",
        "backoff.max.ms": "500",
        "name": "1s",
    }


@pytest.mark.parametrize("text", ["0.1ms", "0.0004s", "0.5ms"])
def test_a_topic_setting_refuses_a_time_that_would_be_0(text: str) -> None:
    """0 means no limit, or that everything is deleted."""
    with pytest.raises(typer.BadParameter, match=f"retention.ms={text} is less than 1ms"):
        parse_settings([f"retention.ms={text}"])


@pytest.mark.parametrize("text", ["20", "", "s", "-1s", "1w", "1 s", "nan", "1e3s", "١s", "1" * 40 + "s"])
def test_text_without_numbers_and_known_units_is_no_duration(text: str) -> None:
    assert parse_duration(text) is None


def test_the_error_of_a_number_without_a_unit_shows_the_correct_form() -> None:
    with pytest.raises(typer.BadParameter, match="write 20s"):
        DurationRange(0, 100)("20")


def test_a_duration_out_of_range_names_the_range() -> None:
    with pytest.raises(typer.BadParameter, match="2d is outside 100ms to 1d"):
        DurationRange(0.1, 86_400)("2d")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.1, "100ms"), (20, "20s"), (1.25, "1.25s"), (90, "1m30s"), (7200, "2h"), (90_000, "1d1h")],
)
def test_a_duration_prints_with_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == str(Duration(seconds)) == text
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(("text", "per_second"), [("100/s", 100), ("6/m", 0.1), ("36/h", 0.01)])
def test_a_rate_is_a_number_and_a_unit(text: str, per_second: float) -> None:
    assert parse_rate(text) == pytest.approx(per_second)
    assert str(parse_rate(text)) == text


@pytest.mark.parametrize("text", ["100", "0/s", "1/d", "-1/s", "1.5/s", "1000001/s"])
def test_a_rate_without_a_known_unit_or_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="such as 100/s"):
        parse_rate(text)


def test_a_default_that_is_already_a_rate_is_accepted() -> None:
    assert str(parse_rate(Rate(1000))) == "1000/s"


def test_a_printed_time_can_be_parsed_again() -> None:
    assert format_time(1_769_860_800_000) == "2026-01-31T12:00:00Z"
    assert parse_time_ms(format_time(1_769_860_800_000)) == 1_769_860_800_000


def test_a_time_after_the_year_9999_is_refused_and_shown_as_a_number() -> None:
    """Records may have any timestamp."""
    assert format_time(10**17) == "100000000000000000"
    with pytest.raises(typer.BadParameter, match="'100000000000000000' is after the year 9999"):
        parse_past("100000000000000000")
