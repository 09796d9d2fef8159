"""Let Griffe show the literal blocks of docstrings, which begin after ``::``, as programs in Python."""

from __future__ import annotations

import re
from typing import Any

import griffe

_BLOCK = re.compile(r"^(?P<before>.*?)::\n\n(?P<code>(?: {4}.*\n|\n)+)", re.MULTILINE)


def with_fences(docstring: str) -> str:
    """Return the docstring with fenced blocks in the place of literal ones."""

    def fenced(block: re.Match[str]) -> str:
        before = f"{block['before']}:\n\n" if block["before"] else ""
        code = re.sub(r"^ {4}", "", block["code"].rstrip(), flags=re.MULTILINE)
        return f"{before}```python\n{code}\n```\n\n"

    return _BLOCK.sub(fenced, f"{docstring}\n").rstrip()


class LiteralBlocks(griffe.Extension):  # type: ignore[misc]  # griffe is in the environment of the site
    """Rewrites each docstring of the package."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ANN401 - as Griffe passes them
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = with_fences(obj.docstring.value)
