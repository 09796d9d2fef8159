"""Hooks of MkDocs: build the site from the repository's own paths, so that a link works on GitHub and on the site.

MkDocs sees each page under its path in the repository (``docs/guides/tutorial.md``, ``ARCHITECTURE.md``), and only its address on the site is
shorter. A linked file that is no page, such as a program, gets a page that shows it. The API reference has pages that exist only on the site.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pymdownx.superfences import fence_code_format

from scripts.docs_site.api_pages import API_PAGES, path_of, source_of
from scripts.docs_site.markdown import link_targets, slug

ROOT = Path(__file__).resolve().parents[2]
ADDRESSES = {"README.md": "", "docs/README.md": "contents/"}
"""Addresses of pages that do not follow from their paths."""
IMAGES = (".png", ".svg")
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".proto": "proto", ".service": "ini"}
DIAGRAMS = "assets/javascripts/mermaid.min.js"
STYLE = "assets/stylesheets/raftmq.css"


class SourceFile(File):  # type: ignore[misc]  # mkdocs is in the environment of the site
    """A file of the repository that a page shows."""

    def is_documentation_page(self) -> bool:
        """Tell MkDocs to render it."""
        return True


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings the anchors that GitHub gives them, and leave diagrams to the script that draws them. Mike adds the menu of versions."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = lambda heading, _: slug(heading)
    diagram = {"name": "mermaid", "class": "mermaid", "format": fence_code_format}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [diagram]
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of the folder docs/ with those that the navigation and their links name."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    generated = {path_of(name): source_of(page) for name, page in API_PAGES.items()}
    pages = list(paths_in(config.nav))
    for path in pages:
        page = File(path, str(ROOT), config.site_dir, True, dest_uri=f"{address_of(path)}index.html")
        if path in generated:
            page.src_dir = None
            page.content_string = generated[path]
        files.append(page)
    for path in sorted(linked_files(pages) - set(pages)):
        files.append(shown_file(path, config.site_dir))
    script = Path(str(distribution("mermaidx").locate_file("mermaidx/assets/mermaid.js")))
    files.append(static_file(DIAGRAMS, script.read_bytes(), config.site_dir))
    files.append(static_file(STYLE, (ROOT / "scripts/docs_site/site.css").read_bytes(), config.site_dir))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show the first page without the navigation beside it, which has only this page."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    return markdown


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load the script that draws diagrams, on the pages that have some. Without it the theme would fetch one from the network."""
    if 'class="mermaid"' not in output:
        return output
    address = posixpath.relpath(DIAGRAMS, page.url or ".")
    return output.replace("</head>", f'<script src="{address}"></script></head>', 1)


def paths_in(navigation: Any) -> Iterator[str]:  # noqa: ANN401 (nested lists and dictionaries of YAML)
    """Yield the path of each page in the navigation."""
    if isinstance(navigation, str):
        yield navigation
    else:
        for item in navigation.values() if isinstance(navigation, dict) else navigation:
            yield from paths_in(item)


def address_of(path: str) -> str:
    """Return a page's address on the site."""
    if path in ADDRESSES:
        return ADDRESSES[path]
    return f"{path.removeprefix('docs/').removesuffix('.md').removesuffix('/README').lower()}/"


def linked_files(pages: list[str]) -> set[str]:
    """Return the files of the repository that the pages link to."""
    found = set()
    for page in pages:
        if (ROOT / page).is_file():
            for target in link_targets((ROOT / page).read_text()):
                path = target.partition("#")[0]
                if path and not re.match(r"\w+:", path):
                    found.add(posixpath.normpath(posixpath.join(posixpath.dirname(page), path)))
    return {path for path in found if (ROOT / path).is_file()}


def shown_file(path: str, site: str) -> File:
    """Return an image as it is, and another file as a page that shows it."""
    if path.endswith(IMAGES):
        return File(path, str(ROOT), site, True, dest_uri=path.removeprefix("docs/"))
    inclusion = InclusionLevel.NOT_IN_NAV
    page = SourceFile(path, None, site, True, dest_uri=f"source/{path}/index.html", inclusion=inclusion)
    language = LANGUAGES.get(Path(path).suffix, "text")
    text = (ROOT / path).read_text().rstrip()
    page.content_string = f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n~~~~~~{language}\n{text}\n~~~~~~\n"
    return page


def static_file(path: str, content: bytes, site: str) -> File:
    """Return a file of the site that has no source below docs/."""
    file = File(path, None, site, True)
    file.content_bytes = content
    return file
