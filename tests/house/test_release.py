"""The version has one place, and the checks of a release find each mistake. `make release` runs all of it."""

from __future__ import annotations

import re

import pytest
import yaml

from scripts.licences import is_allowed, licence_of, problems
from scripts.release import ReleaseError, check_changelog, version
from tests.support.house.files import ROOT, tracked_files

WHEEL = re.compile(r"raftmq-(\d+\.\d+\.\d+)-py3-none-any\.whl")
SECTION = "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2027-01-31\n\n### Added\n\n- A thing.\n\n## [1.1.0] - 2027-01-01\n\n"


def test_every_other_place_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((ROOT / "helm/raftmq/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version(), version())
    named = {
        (path.name, found)
        for path in tracked_files()
        if path.suffix == ".md"
        for found in WHEEL.findall(path.read_text())
    }
    assert named
    assert {found for _, found in named} == {version()}


def test_a_release_needs_a_dated_section_with_changes() -> None:
    check_changelog(SECTION, "1.2.0")
    with pytest.raises(ReleaseError, match=r"has no section `## \[1\.3\.0\] - YYYY-MM-DD`: rename \[Unreleased\]"):
        check_changelog(SECTION, "1.3.0")
    with pytest.raises(ReleaseError, match=r"the section of 1\.1\.0 in CHANGELOG\.md lists no change"):
        check_changelog(SECTION, "1.1.0")


@pytest.mark.parametrize(
    ("expression", "classifiers", "text", "licence"),
    [
        ("MIT OR Apache-2.0", ["MIT License"], "", "MIT OR Apache-2.0"),
        ("", ["Apache Software License"], "something else", "Apache-2.0"),
        ("", [], "BSD License\n\nCopyright", "BSD-3-Clause"),
        ("", [], "", ""),
    ],
)
def test_the_first_statement_of_a_licence_counts(
    expression: str, classifiers: list[str], text: str, licence: str
) -> None:
    assert licence_of(expression, classifiers, text) == licence


@pytest.mark.parametrize(
    ("licence", "is_one"),
    [
        ("MIT", True),
        ("GPL-3.0-only OR MIT", True),
        ("(Apache-2.0 AND BSD-3-Clause)", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only", False),
        ("", False),
    ],
)
def test_a_licence_is_allowed_if_one_alternative_is(licence: str, is_one: bool) -> None:
    assert is_allowed(licence) is is_one


def test_a_package_without_a_known_licence_is_named() -> None:
    lgpl = "GNU Lesser General Public License v2 or later (LGPLv2+)"
    assert problems([("good", "MIT", [], ""), ("crc32c", "", [lgpl], ""), ("odd", "", [], "Ask me\nfirst")]) == [
        "odd: Ask me is not in scripts/licences.py: read it, then allow it or drop the package"
    ]
