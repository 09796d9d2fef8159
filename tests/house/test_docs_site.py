"""`make docs-site` builds the site without a warning, it shows each page as GitHub does, and it needs no network."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.support.house.files import ROOT

pytestmark = [pytest.mark.long, pytest.mark.slow]

SITE = ROOT / "site"
COUNTED = re.compile(r"<(li|ol|ul|tr|pre|h[1-6]|img|blockquote|strong)[ >]")
CONTENT = re.compile(r'<article class="md-content__inner md-typeset">(.*?)</article>', re.DOTALL)


@pytest.fixture(scope="module")
def built() -> None:
    done = subprocess.run(
        [ROOT / "scripts/docs_site/run.sh"], capture_output=True, text=True, timeout=280, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def address_of(path: Path) -> Path:
    """Return the built page of a markdown page."""
    name = str(path.relative_to(ROOT))
    known = {"README.md": "", "docs/README.md": "contents"}
    short = known.get(name, name.removeprefix("docs/").removesuffix(".md").removesuffix("/README").lower())
    return SITE / short / "index.html"


def pages() -> Iterator[Path]:
    for folder in (ROOT / "docs", ROOT):
        yield from (path for path in folder.glob("*.md"))
    yield from (ROOT / "docs").glob("*/*.md")


def counted(html: str) -> Counter[str]:
    return Counter(COUNTED.findall(html))


@pytest.mark.usefixtures("built")
def test_each_page_has_the_lists_tables_and_blocks_of_github() -> None:
    differing = {}
    for page in pages():
        (shown,) = CONTENT.findall(address_of(page).read_text())
        wanted = counted(MarkdownIt("commonmark").enable("table").render(page.read_text()))
        if counted(shown) != wanted:
            differing[page.name] = {
                tag: (count, counted(shown)[tag]) for tag, count in wanted.items() if counted(shown)[tag] != count
            }
    assert differing == {}


@pytest.mark.usefixtures("built")
def test_no_page_loads_anything_from_another_server() -> None:
    loaded = re.compile(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["']?(?:https?:)?//""")
    assert [path for path in SITE.rglob("*.html") if loaded.search(path.read_text())] == []


@pytest.mark.usefixtures("built")
def test_the_reference_documents_methods_with_their_errors() -> None:
    page = (SITE / "reference/api/producer/index.html").read_text()
    assert 'id="raftmq.Producer.send"' in page
    assert "DeliveryTimeoutError" in page
    assert "::</p>" not in page


@pytest.mark.usefixtures("built")
def test_diagrams_are_drawn_by_a_script_of_the_site() -> None:
    page = (SITE / "internals/groups/index.html").read_text()
    assert page.count('class="mermaid"') == 4
    (script,) = re.findall(r'src="([^"]*mermaid[^"]*)"', page)
    assert (SITE / "internals/groups" / script).resolve().is_file()
    assert "mermaid" not in (SITE / "guides/tutorial/index.html").read_text()
