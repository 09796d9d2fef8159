"""Count habits of language in the project's texts: docstrings, attribute docstrings, comments and markdown pages."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_WORD = re.compile(r"[A-Za-z']+")
_WHAT = re.compile(r"\bwhat\b", re.IGNORECASE)
_STIFF = re.compile(r"\b(?:shall|anew|for ever|whoever|meanwhile)\b", re.IGNORECASE)
_QUESTION_WORD = re.compile(r"(?:what|which|who|whose|when|where|why|how|whether|whoever|whatever)\b", re.IGNORECASE)
_CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
_TABLE_ROW = re.compile(r"^\s*(?://!?\s*)?\|.*$", re.MULTILINE)
_STRING_OR_COMMENT = re.compile(
    r"""\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|(\#[^\n]*)""",
    re.DOTALL,
)
"""Finds the comments of a program: strings are skipped, and their group is empty. It is much quicker than `tokenize`."""
_DIRECTIVES = ("noqa", "type:", "ruff:", "pyright:", "---")
_BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(slots=True)
class Counts:
    """Counts of one area."""

    words: int = 0
    whats: int = 0
    semicolons: int = 0
    """Outside tables and code."""
    docstrings: int = 0
    question_first: int = 0
    """Docstrings that begin with a question word."""
    stiff: list[str] = field(default_factory=list)
    """Words that have a plainer one, each with its text."""

    def add(self, text: str) -> None:
        """Count a text."""
        plain = _CODE.sub("x", text)
        self.words += len(_WORD.findall(plain))
        self.whats += len(_WHAT.findall(plain))
        self.stiff += [f"{word}: {text[:80]}" for word in _STIFF.findall(plain)]
        self.semicolons += _TABLE_ROW.sub("", plain).count(";")

    def add_docstring(self, text: str) -> None:
        """Count a docstring."""
        self.add(text)
        self.docstrings += 1
        self.question_first += _QUESTION_WORD.match(text) is not None

    @property
    def rates(self) -> tuple[int, int, int]:
        """Return "what" per 10,000 words, semicolons per 1,000 words and the percentage of docstrings that ask, each rounded up."""
        words, docstrings = max(1, self.words), max(1, self.docstrings)
        return (
            -(-10_000 * self.whats // words),
            -(-1_000 * self.semicolons // words),
            -(-100 * self.question_first // docstrings),
        )


def count(file: Path, counts: Counts) -> None:
    """Add the texts of a Python module or a markdown page."""
    source = file.read_text()
    if file.suffix == ".md":
        counts.add(source)
        return
    for node in _documented(ast.parse(source)):
        docstring = ast.get_docstring(node)
        if docstring:
            counts.add_docstring(docstring)
        for text in _attribute_docstrings(node):
            counts.add(text)
    for comment in _STRING_OR_COMMENT.findall(source):
        text = comment.lstrip("# ")
        if text and not text.startswith(_DIRECTIVES):
            counts.add(text)


def _documented(node: ast.AST) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the node and those below it that may have a docstring. Expressions have none, and most nodes are in expressions."""
    if isinstance(node, _DOCUMENTED):
        yield node
    for block in _BLOCKS:
        for child in getattr(node, block, ()):
            yield from _documented(child)


def _attribute_docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for statement in node.body[1:]:
        value = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value
