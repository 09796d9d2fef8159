"""The version has one place, and the checks of a release find each mistake. `make release` runs all of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from scripts.licences import is_allowed, licence_of, problems
from scripts.release import ReleaseError, check_changelog, missing_files, version, without_local_files
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
        ("", ["MIT License", "Apache Software License"], "", "MIT AND Apache-2.0"),
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
        ("GPL-3.0-only AND (MIT OR Apache-2.0)", False),
        ("(MIT OR BSD-3-Clause) AND GPL-3.0-only", False),
        ("(MIT OR GPL-3.0-only) AND (GPL-3.0-only or Apache-2.0)", True),
        ("GPL-3.0-only OR MIT AND ISC", True),
        ("MIT AND GPL-3.0-only OR GPL-3.0-only", False),
        ("MIT OR (GPL-3.0-only AND ISC) OR Zlib", True),
        ("((MIT))", True),
        ("(MIT", False),
        ("MIT)", False),
        ("MIT AND", False),
        ("MIT Apache-2.0", False),
        ("Apache-2.0 WITH LLVM-exception", False),
        ("", False),
    ],
)
def test_a_licence_is_allowed_if_one_alternative_is(licence: str, is_one: bool) -> None:
    assert is_allowed(licence) is is_one


def test_each_module_that_a_wheel_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.setuptools.package-dir]\n"raftmq" = "api"\n"raftmq.fsm" = "fsm"\n')
    for name in (
        "api/types.py",
        "api/py.typed",
        "api/README.md",
        "fsm/tables.py",
        "fsm/queue/rows.py",
        "tests/test_a.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    packed = ["raftmq/types.py", "raftmq/fsm/tables.py", "raftmq/py.typed", "raftmq/fsm/queue/rows.py"]
    assert missing_files(tmp_path, packed) == []
    assert missing_files(tmp_path, packed[:2]) == ["api/py.typed", "fsm/queue/rows.py"]


def test_the_list_of_packages_names_no_file_of_the_machine() -> None:
    site = {"type": "website", "url": "https://example.org"}
    wheel = {"type": "distribution", "url": "file:///home/me/raftmq.whl"}
    listed = {
        "components": [{"name": "a", "externalReferences": [site, wheel]}, {"name": "b", "externalReferences": [wheel]}]
    }
    assert json.loads(without_local_files(json.dumps(listed))) == {
        "components": [{"name": "a", "externalReferences": [site]}, {"name": "b"}]
    }
    with pytest.raises(ReleaseError, match="names a file of this machine"):
        without_local_files(json.dumps({"components": [{"name": "a", "evidence": "file:///home/me"}]}))


def test_a_package_without_a_known_licence_is_named() -> None:
    lgpl = "GNU Lesser General Public License v2 or later (LGPLv2+)"
    assert problems([("good", "MIT", [], ""), ("crc32c", "", [lgpl], ""), ("odd", "", [], "Ask me\nfirst")]) == [
        "odd: Ask me is not in scripts/licences.py: read it, then allow it or drop the package"
    ]
