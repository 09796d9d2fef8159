"""Check the checkout: generated files are fresh, documents agree with the code, and no file has a path of a machine."""

import importlib.metadata
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from scripts.check_generated import stale_docs, stale_protobuf
from tests.support.house.files import ROOT, tracked_files

MACHINE_PATHS = re.compile(r"(?<![\w.$}~/-])/(?:home|root|Users|work|opt)/[\w.-]+")
REGISTRY_HOSTS = re.compile(
    r"\b(?:[\w-]+\.)*(?:pypi\.org|pythonhosted\.org|npmjs\.org|proxy\.golang\.org)\b|--(?:extra-)?index-url|\bindex-url\s*=",
    re.IGNORECASE,
)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
ENTRY_MAX = 150
"""Characters of an entry in CHANGELOG.md, without the addresses of its links."""


def tracked_texts() -> list[tuple[Path, str]]:
    texts = []
    for path in tracked_files():
        try:
            texts.append((path.relative_to(ROOT), path.read_text()))
        except UnicodeDecodeError:
            continue
    return texts


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def project() -> dict[str, str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        declared: dict[str, str] = tomllib.load(file)["project"]
    return declared


def test_generated_protobuf_modules_are_fresh() -> None:
    assert stale_protobuf() == []


def test_generated_reference_pages_are_fresh() -> None:
    assert stale_docs() == [], "run `make docs`"


def test_no_folder_shadows_the_installed_package() -> None:
    assert not (ROOT / "raftmq").exists()


def test_no_file_names_a_path_of_a_machine_or_a_package_registry() -> None:
    found = [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in tracked_texts()
        if name != Path(__file__).relative_to(ROOT)
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATHS.search(line) or REGISTRY_HOSTS.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line", ["cd /home/jane/raftmq", "see /work/shared", '"/root/.cache"', "--index-url=x", "https://pypi.org/simple"]
)
def test_a_machine_path_or_registry_is_found(line: str) -> None:
    assert MACHINE_PATHS.search(line) or REGISTRY_HOSTS.search(line)


@pytest.mark.parametrize(
    "name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/adr/0003-lock-file.md"]
)
def test_every_make_command_in_a_document_exists(name: str) -> None:
    text = (ROOT / name).read_text()
    code = "\n".join([*re.findall(r"```sh\n(.*?)```", text, re.DOTALL), *re.findall(r"`([^`\n]+)`", text)])
    called = set(re.findall(r"\bmake ([a-z]+)", code))
    assert called <= make_targets()


def test_the_first_pages_call_make() -> None:
    """Without this the test above could not fail on pages without commands."""
    called = {
        name: set(re.findall(r"make ([a-z]+)", (ROOT / name).read_text())) for name in ("README.md", "CONTRIBUTING.md")
    }
    assert {"demo", "test"} <= called["README.md"] & make_targets()
    assert {"setup", "check", "fix", "test"} <= called["CONTRIBUTING.md"] & make_targets()


def test_ci_calls_make_and_nothing_else() -> None:
    lines = (ROOT / ".ci/run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    assert all(command.split()[0] == "make" and command.split()[1] in make_targets() for command in commands)
    assert commands[-1] == "make test"


def test_the_first_program_of_the_readme_is_the_example() -> None:
    shown = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    assert shown[1].strip() in strip_docstrings((ROOT / "examples/first_program.py").read_text())


def strip_docstrings(program: str) -> str:
    return re.sub(r'^ *""".*?"""\n', "", program, flags=re.MULTILINE | re.DOTALL)


def test_every_decision_is_listed_under_its_number() -> None:
    listed = dict(re.findall(r"\[(\d{4})\]\(([\w.-]+)\)", (ROOT / "docs/adr/README.md").read_text()))
    pages = {path.name[:4]: path.name for path in (ROOT / "docs/adr").glob("[0-9]*.md")}
    assert listed == pages


def test_every_decision_has_its_sections() -> None:
    for path in (ROOT / "docs/adr").glob("[0-9]*.md"):
        text = path.read_text()
        assert re.match(rf"# ADR {path.name[:4]}: \S", text), path.name
        assert "Status: " in text, path.name
        for section in ("Context", "Decision", "Consequences"):
            assert f"## {section}" in text, f"{path.name} lacks {section}"


def test_the_installed_version_and_the_changelog_agree_with_the_project() -> None:
    version = project()["version"]
    assert importlib.metadata.version("raftmq") == version
    assert re.search(rf"^## \[({re.escape(version)}|Unreleased)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def wrong_entries(changelog: str) -> list[str]:
    """Return the lines below the first version that are entries above `ENTRY_MAX`, or that continue an entry."""
    lines = [LINK.sub(r"\1", line) for line in changelog.partition("\n## ")[2].splitlines()]
    too_long = [line for line in lines if line.startswith("- ") and len(line) > ENTRY_MAX]
    continued = [
        line for before, line in pairwise(lines) if before.startswith("- ") and line and not line.startswith("- ")
    ]
    return too_long + continued


def test_each_entry_of_the_changelog_is_one_short_line() -> None:
    assert wrong_entries((ROOT / "CHANGELOG.md").read_text()) == []


@pytest.mark.parametrize(
    ("entries", "count"),
    [
        (f"- {'a' * 148}\n", 0),
        (f"- {'a' * 149}\n", 1),
        (f"- {'a' * 138} [the guide]({'b' * 50})\n", 0),
        (f"- {'a' * 139} [the guide]({'b' * 50})\n", 1),
        ("- begins here\n  and ends there\n- another one\n", 1),
        ("- begins here\nand ends there\n", 1),
        ("- one\n- two\n\nClients\n\n- three\n", 0),
    ],
)
def test_an_entry_that_is_too_long_or_continued_is_found(entries: str, count: int) -> None:
    assert len(wrong_entries(f"# Changelog\n\n- no entry\n  of a version\n\n## [1.0.0]\n\n{entries}")) == count


def test_the_architecture_is_short_and_names_every_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(text.splitlines()) < 200
    with (ROOT / "pyproject.toml").open("rb") as file:
        folders = tomllib.load(file)["tool"]["setuptools"]["package-dir"].values()
    assert [folder for folder in folders if f"`{folder}/`" not in text and "/" not in folder] == []


def test_every_folder_with_modules_is_a_declared_package() -> None:
    """A missing entry in `packages` works in a checkout and fails for users."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        setuptools = tomllib.load(file)["tool"]["setuptools"]
    roots = setuptools["package-dir"]

    def folder_of(package: str) -> str:
        """Return the folder of a package: its declared one, or a subfolder of its parent's."""
        parent, _, name = package.rpartition(".")
        return roots[package] if package in roots else f"{folder_of(parent)}/{name}"

    product = ("api", "assignors", "broker", "cli", "client", "fsm", "raft", "spark", "storage", "pyspark_raftmq")
    holding = {str(init.parent.relative_to(ROOT)) for top in product for init in (ROOT / top).rglob("__init__.py")}
    assert holding == {folder_of(package) for package in setuptools["packages"]}
    assert set(roots) <= set(setuptools["packages"])
