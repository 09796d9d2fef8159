"""Check the map of each package, its README.md: it is short, names every module, and names only existing files."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAPPED = (
    "api",
    "assignors",
    "bench",
    "broker",
    "broker/cluster",
    "broker/replica",
    "broker/services",
    "cli",
    "client",
    "client/connection",
    "client/consumer",
    "client/producer",
    "client/queue",
    "client/transformer",
    "client/worker",
    "fsm",
    "raft",
    "sim",
    "sim/cluster",
    "spark",
    "storage",
    "tests",
)
LINES_MAX = 50
FILE = re.compile(r"[\w./-]+\.(?:py|md|proto|toml)")


def modules_of(folder: Path) -> set[str]:
    """Return the modules in a folder and its folders with modules, without package files and test set-up."""
    files = {path.name for path in folder.glob("*.py")} - {"__init__.py", "__main__.py", "conftest.py"}
    return files | {f"{path.name}/" for path in folder.iterdir() if any(path.glob("*.py"))}


def names_in(text: str) -> list[str]:
    """Return the texts in code quotes."""
    return re.findall(r"`([^`\n]+)`", text)


def missing_modules(text: str, modules: set[str]) -> set[str]:
    """Return the modules that the map does not name. A path inside a folder also names the folder."""
    names = names_in(text)
    return {
        module
        for module in modules
        if not any(name == module or (module.endswith("/") and name.startswith(module)) for name in names)
    }


def missing_files(text: str, folder: Path) -> list[str]:
    """Return the files that the map names and that exist neither in the package nor in the checkout."""
    named = [name for name in names_in(text) if FILE.fullmatch(name)] + re.findall(r"\]\(([^)#:]+)\)", text)
    return [name for name in named if not (folder / name).exists() and not (ROOT / name).exists()]


@pytest.mark.parametrize("package", MAPPED)
def test_a_map_is_short_and_complete(package: str) -> None:
    folder = ROOT / package
    text = (folder / "README.md").read_text()
    assert text.startswith(f"# {package}/\n")
    assert len(text.splitlines()) <= LINES_MAX
    assert missing_files(text, folder) == []
    assert missing_modules(text, modules_of(folder)) == set()


def test_a_missing_module_and_a_missing_file_are_reported(tmp_path: Path) -> None:
    for name in ("new.py", "known.py", "__init__.py"):
        (tmp_path / name).touch()
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "one.py").touch()
    text = "`known.py`, `gone.py`, [x](nowhere.md)"
    assert missing_modules(text, modules_of(tmp_path)) == {"new.py", "parts/"}
    assert missing_files(text, tmp_path) == ["gone.py", "nowhere.md"]


def test_every_map_is_listed() -> None:
    index = (ROOT / "docs/README.md").read_text()
    assert [package for package in MAPPED if f"(../{package}/README.md)" not in index] == []
