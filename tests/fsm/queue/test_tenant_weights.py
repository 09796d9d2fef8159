"""Weights by pattern (`fsm/queue/tenant_weights.py`)."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.fsm.queue.tenant_weights import PATTERNS_MAX, WEIGHT_DEFAULT, TenantWeights, check_weights


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("acme", "acme", True),
        ("acme", "acme.eu", False),
        ("acme.*", "acme.eu", True),
        ("acme.*", "acme", False),
        ("acme.*", "acme.", True),
        ("acme.", "acme.", True),
        ("", "", True),
        ("*", "", True),
        ("*.eu", "acme.eu", True),
        ("ac*e", "ace", True),
        ("ac*ce", "ace", False),
        ("*a*b*", "xxaxxbxx", True),
        ("*a*b*", "xxbxxaxx", False),
        ("a*a", "a", False),
        ("[a]", "a", False),
    ],
)
def test_a_star_stands_for_characters_of_one_level(pattern, path, matches):
    assert TenantWeights([(pattern, 7)]).weight_of(path) == (7 if matches else WEIGHT_DEFAULT)


@given(st.text("ab*.", max_size=8), st.text("ab.", max_size=10))
def test_patterns_match_as_the_regular_expression_does(pattern, path):
    expression = "[^.]*".join(re.escape(part) for part in pattern.split("*"))
    expected = re.fullmatch(expression, path) is not None
    assert (TenantWeights([(pattern, 9)]).weight_of(path) == 9) is expected


def test_the_first_pattern_that_matches_counts():
    weights = TenantWeights([("gold.*", 5), ("*.test", 2), ("*.*", 3)])
    assert [weights.weight_of(path) for path in ("gold.test", "iron.test", "iron.x", "iron")] == [5, 2, 3, 1]


def test_a_pattern_of_many_stars_takes_no_exponential_time():
    """A user chooses the pattern, and it is evaluated while entries are applied."""
    assert TenantWeights([("*a" * 100 + "b", 2)]).weight_of("a" * 249) == WEIGHT_DEFAULT


@pytest.mark.parametrize(
    ("patterns", "problem"),
    [
        ([("a", 0)], "not within"),
        ([("a", 1001)], "not within"),
        ([("a" * 250, 1)], "longer than"),
        ([("a", 1)] * (PATTERNS_MAX + 1), "too many"),
        ([("a", 1), ("b.*", 1000)], ""),
    ],
)
def test_refused_weights_name_the_problem(patterns, problem):
    text = check_weights(patterns)
    assert problem in text
    assert bool(problem) is bool(text)
