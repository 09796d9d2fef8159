"""Patterns over topic names: the same language as Python's `re`, in linear time."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq.broker.consumer_groups.topic_pattern import TopicPattern, TopicPatternError

CHARACTERS = st.sampled_from(
    ["a", "b", "c", ".", r"\.", r"\d", r"\w", r"\W", "[ab]", "[^a]", "[a-c]", "[]x]", "1", "_", "-"]
)
COUNTS = st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "{0}", "*?", "{0,}"])


def _combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return (
        st.builds(lambda parts: "(" + "|".join(parts) + ")", st.lists(inner, min_size=1, max_size=3))
        | st.builds(lambda parts: "".join(parts), st.lists(inner, min_size=1, max_size=3))
        | st.builds(lambda part, count: f"(?:{part}){count}", inner, COUNTS)
        | st.builds(lambda part, count: f"{part}{count}", CHARACTERS, COUNTS)
    )


PATTERNS = st.recursive(CHARACTERS, _combine, max_leaves=6).filter(lambda text: len(text) < 200)
NAMES = st.text("abc1_.-x]", max_size=8)


@settings(max_examples=700, deadline=None)
@given(PATTERNS, st.lists(NAMES, min_size=1, max_size=10))
def test_it_matches_what_re_matches(pattern: str, names: list[str]) -> None:
    twin = re.compile(pattern)
    compiled = TopicPattern(pattern)
    for name in names:
        assert compiled.matches(name) == (twin.fullmatch(name) is not None), (pattern, name)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("flights", "flights", "flights2"),
        ("^flights-.*$", "flights-eu", "my-flights-eu"),
        (r"orders\.(eu|us)", "orders.eu", "orders-eu"),
        ("[a-z]+-[0-9]{2,3}", "a-12", "a-1"),
        ("a|", "", "b"),
        ("[-a]+", "-a-", "b"),
        ("()", "", "a"),
    ],
)
def test_examples(pattern: str, matching: str, other: str) -> None:
    assert TopicPattern(pattern).matches(matching)
    assert not TopicPattern(pattern).matches(other)


@pytest.mark.parametrize(
    "pattern",
    [
        "", "*a", "a**", "(a", "a)", "[a", "[b-a]", r"\1", r"(a)\1", "(?=a)", "a{3,2}", "a{9999}", "\\", "a" * 257, "((a{90}){90}){90}",
        "(((){99}){99}){99}", "{2}", "a{2}{3}", ".{900}" * 40,
    ],
)  # fmt: skip
def test_what_could_take_long_and_what_is_malformed_is_refused(pattern: str) -> None:
    with pytest.raises(TopicPatternError):
        TopicPattern(pattern)


def test_a_refusal_names_the_pattern_and_the_problem() -> None:
    with pytest.raises(TopicPatternError, match=r"missing \): \(a, in the pattern '\(a'"):
        TopicPattern("(a")


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "(a?){100}a{100}b", "(.*)*x"])
def test_no_pattern_takes_long(pattern: str) -> None:
    """Exponential in a backtracking engine: 2^240 steps. The bound is for a very slow machine."""
    started = time.process_time()
    assert not TopicPattern(pattern).matches("a" * 249)
    assert time.process_time() - started < 5


@given(st.text(max_size=40))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        pattern = TopicPattern(text)
    except TopicPatternError:
        return
    assert pattern.matches("ab") in (True, False)
