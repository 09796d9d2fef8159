"""Every page is in the navigation of the site, every link between the pages of the repository resolves, and their markup suits GitHub and the site.

`make docs-site` builds the site, and test_docs_site.py looks at the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import raftmq
import yaml

from scripts.docs_site.api_pages import API_PAGES, ELSEWHERE, path_of
from scripts.docs_site.markdown import anchors, headings, link_targets, without_code_blocks
from tests.support.house.files import ROOT, tracked_files

GITHUB = ".github/"
FULL_ADDRESS = re.compile(r"\w+:")
INDENTED = re.compile(r"( +)\S")
FENCE = re.compile(r"^( *)(?:```|~~~)", re.MULTILINE)
LIST_KIND = re.compile(r"- |\d+\. ")
ITEM = re.compile(r" *(?:[-*]|\d+\.) ")


@cache
def configuration() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    return loaded


def paths_in(navigation: Any) -> Iterator[str]:
    if isinstance(navigation, str):
        yield navigation
    else:
        for item in navigation.values() if isinstance(navigation, dict) else navigation:
            yield from paths_in(item)


@cache
def pages() -> dict[str, str]:
    """Return every markdown page of the repository by its path."""
    paths = {str(path.relative_to(ROOT)): path for path in tracked_files() if path.suffix == ".md"}
    return {name: path.read_text() for name, path in sorted(paths.items()) if not name.startswith(GITHUB)}


@cache
def files() -> frozenset[str]:
    return frozenset(str(path.relative_to(ROOT)) for path in tracked_files())


def link_problems(page: str, text: str) -> Iterator[str]:
    """Describe each relative link of a page that leads nowhere, on GitHub or on the site."""
    for target in link_targets(text):
        if FULL_ADDRESS.match(target):
            continue
        path, _, anchor = target.partition("#")
        found = str((Path("/") / Path(page).parent / path).resolve().relative_to("/")) if path else page
        if found not in files():
            yield f"{page}: {target} is no file"
        elif anchor and found not in pages():
            yield f"{page}: {target} has an anchor, but is no page"
        elif anchor and (count := anchors(pages().get(found, text) if path else text).count(anchor)) != 1:
            yield f"{page}: {target} names {count or 'no'} headings"


def markup_problems(page: str, text: str) -> Iterator[str]:
    """Describe markup that GitHub and Python-Markdown understand differently."""
    for indent in FENCE.findall(text):
        if len(indent) % 4:
            yield f"{page}: a code block in a list is indented by four spaces, not by {len(indent)}"
    before, last_line, is_block = "", "", False
    for number, line in enumerate(without_code_blocks(text).splitlines(), 1):
        indented = INDENTED.match(line)
        if is_block and before.strip() and ITEM.match(line) and not indented:
            yield f"{page}:{number}: an item after the block of another one begins after an empty line: {line[:40]}"
        kind = LIST_KIND.match(line)
        if kind and (last := LIST_KIND.match(last_line)) and (kind[0] == "- ") != (last[0] == "- "):
            yield f"{page}:{number}: a list after a list of another kind begins after a text: {line[:40]}"
        if line.strip():
            last_line = line
            is_block = bool(indented) and (is_block or not before.strip())
        if indented and len(indented[1]) % 4 and (not before.strip() or ITEM.match(line)):
            yield f"{page}:{number}: the block of a list is indented by four spaces: {line.strip()[:40]}"
        if line.startswith("|") and before.strip() and not before.startswith("|"):
            yield f"{page}:{number}: a table begins after an empty line"
        if re.match(r"[-*] |\d+\. ", line) and before.strip() and not ITEM.match(before) and not before.startswith(" "):
            yield f"{page}:{number}: a list begins after an empty line: {line[:40]}"
        before = line


def test_every_page_is_once_in_the_navigation() -> None:
    listed = list(paths_in(configuration()["nav"]))
    generated = {path_of(name) for name in API_PAGES}
    assert sorted(listed) == sorted(pages().keys() | generated)


def test_every_page_has_one_title() -> None:
    assert [page for page, text in pages().items() if not re.search(r"\A(?:<!--.*?-->\s*)?# \S", text)] == []
    titles = {page: re.findall(r"^# ", without_code_blocks(text), re.MULTILINE) for page, text in pages().items()}
    assert [page for page, found in titles.items() if len(found) != 1] == []


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    assert [problem for page, text in pages().items() for problem in link_problems(page, text)] == []


def test_every_list_and_table_is_one_on_github_and_on_the_site() -> None:
    assert [problem for page, text in pages().items() for problem in markup_problems(page, text)] == []


def test_every_page_of_the_documentation_is_in_its_list() -> None:
    text = pages()["docs/README.md"]
    listed = {str((Path("/docs") / target.partition("#")[0]).resolve()) for target in link_targets(text)}
    wanted = {f"/{page}" for page in pages() if page.startswith("docs/") and not page.startswith("docs/adr/0")}
    assert sorted(wanted - listed - {"/docs/README.md"}) == []


def test_every_public_name_is_on_one_page_of_the_reference() -> None:
    names = [name for page in API_PAGES.values() for name in page.names]
    assert len(names) == len(set(names))
    public = {f"raftmq.{name}" for name in raftmq.__all__ if name not in ELSEWHERE}
    public |= {f"raftmq.sync.{name}" for name in raftmq.sync.__all__} | {"raftmq.testing", "raftmq.taskiq"}
    assert set(names) == public


def test_the_site_loads_nothing_from_the_network() -> None:
    settings = configuration()
    assert settings["theme"]["font"] is False
    assert not any(
        FULL_ADDRESS.match(path) for key in ("extra_css", "extra_javascript") for path in settings.get(key, ())
    )


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("[x](guides/tutorial.md)", ""),
        ("[x](guides/tutorial.md#one-record)", ""),
        ("[x](guides/gone.md)", "is no file"),
        ("[two\nlines](guides/gone.md)", "is no file"),
        ("[x](guides)", "is no file"),
        ("[x](guides/tutorial.md#gone)", "names no headings"),
        ("[x](#gone)", "names no headings"),
        ("[x](../queue.proto#gone)", "is no page"),
        ("`[x](gone.md)`", ""),
        ("```text\n[x](gone.md)\n```", ""),
    ],
)
def test_a_link_that_leads_nowhere_is_reported(link: str, problem: str) -> None:
    assert problem in " ".join(link_problems("docs/README.md", link)) or not problem
    assert problem or not list(link_problems("docs/README.md", link))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1. a\n\n   b\n", 1),
        ("1. a\n\n    b\n", 0),
        ("- a\n  - b\n", 1),
        ("- a\n  goes on\n", 0),
        ("- a\n\n    b\n- c\n", 1),
        ("- a\n\n    b\n\n- c\n", 0),
        ("- a\n\n    ```sh\n    b\n    ```\n", 0),
        ("- a\n\n  ```sh\n  b\n  ```\n", 2),
        ("a\n| b |\n", 1),
        ("a\n- b\n", 1),
        ("1. a\n\n- b\n", 1),
        ("1. a\n\nb\n\n- c\n", 0),
    ],
)
def test_markup_that_is_not_the_same_in_both_places_is_reported(text: str, count: int) -> None:
    assert len(list(markup_problems("page.md", text))) == count


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("## Its disk is lost, the machine is not", "its-disk-is-lost-the-machine-is-not"),
        ("## `raftmq topic create`", "raftmq-topic-create"),
        ("### The way of a [link](x.md) & more", "the-way-of-a-link--more"),
        ("## `node_id` stays", "node_id-stays"),
    ],
)
def test_anchors_are_those_of_github(heading: str, anchor: str) -> None:
    assert anchors(f"{heading}\n") == [anchor]


def test_a_comment_in_a_program_is_no_heading() -> None:
    assert headings("# One\n\n```sh\n# two\n```\n\n<!--\n# three\n-->\n") == ["One"]
