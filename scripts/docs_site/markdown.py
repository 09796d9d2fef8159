"""Read the links and headings of a markdown page as GitHub shows it. The site's anchors are the same, so one link works in both places."""

from __future__ import annotations

import re
from collections.abc import Iterator

_FENCED = re.compile(r"^ *(```+|~~~+).*?^ *\1`* *$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE_SPAN = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\((?P<target>[^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


def without_code_blocks(text: str) -> str:
    """Return the page without fenced code blocks and comments."""
    return _COMMENT.sub("", _FENCED.sub("", text))


def link_targets(text: str) -> Iterator[str]:
    """Yield the target of each link and image that is not in code."""
    for link in _LINK.finditer(_CODE_SPAN.sub("code", without_code_blocks(text))):
        yield link["target"]


def headings(text: str) -> list[str]:
    """Return the text of each heading, without its markup."""
    found = []
    for heading in _HEADING.findall(without_code_blocks(text)):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.append(re.sub(r"[`*]", "", plain))
    return found


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(text: str) -> list[str]:
    """Return the anchor of each heading. Two equal ones have a number on GitHub and another one on the site: do not link to them."""
    return [slug(heading) for heading in headings(text)]
