"""Check the licences of installed packages against those under which RaftMQ may be distributed. Usage: python licences.py PYTHON

The metadata of a package states its licence in one of three ways: an SPDX expression, classifiers, or a text. The first that says anything
counts. A package with a licence that is not listed here, or with none, fails the check until somebody has read it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

ALLOWED: Final = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "ISC",
        "MIT",
        "MPL-2.0",
        "OLDAP-2.8",
        "PSF-2.0",
        "Python-2.0",
        "Unlicense",
        "Zlib",
    }
)
"""Licences that permit to use a package beside Apache-2.0, by their SPDX names. MPL-2.0 holds for its own files only."""
NAMES: Final[Mapping[str, str]] = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "mit": "MIT",
    "mit license": "MIT",
    "mit no attribution license (mit-0)": "MIT",
    "isc license (iscl)": "ISC",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "openldap public license": "OLDAP-2.8",
    "python software foundation license": "PSF-2.0",
}
"""Other names of these licences, in lower case."""
ACCEPTED: Final[Mapping[str, str]] = {"crc32c": "GNU Lesser General Public License v2 or later (LGPLv2+)"}
"""Packages with another licence that somebody has read, with that licence.

crc32c is installed beside RaftMQ as a package of its own, unchanged and replaceable, which the LGPL asks for. RaftMQ contains none of it.
"""
_LIST = """
import importlib.metadata as m, json
print(json.dumps([
    [d.name, d.metadata.get("License-Expression") or "",
     [c.rpartition(" :: ")[2] for c in d.metadata.get_all("Classifier") or () if c.startswith("License ::") and c.count("::") > 1],
     d.metadata.get("License") or ""]
    for d in m.distributions()
]))
"""


def licence_of(expression: str, classifiers: Sequence[str], text: str) -> str:
    """Return the licence of a package as an SPDX expression, or an empty string.

    Several classifiers count as licences that all apply: nothing says that a user may choose among them.
    """
    if expression:
        return expression
    if classifiers:
        return " AND ".join(NAMES.get(name.lower(), name) for name in classifiers)
    line = text.strip().partition("\n")[0].strip()
    return NAMES.get(line.lower(), line)


class _Parser:
    """Evaluates an SPDX expression: True is an allowed licence, and a text that is no expression is False.

    AND binds more tightly than OR.
    """

    def __init__(self, expression: str) -> None:
        self._tokens = re.findall(r"[()]|[^\s()]+", expression)

    @property
    def is_at_end(self) -> bool:
        return not self._tokens

    def alternatives(self) -> bool:
        found = self._together()
        while self._takes("OR"):
            other = self._together()  # before `or`, which would not read the tokens of the other alternative
            found = found or other
        return found

    def _together(self) -> bool:
        found = self._one()
        while self._takes("AND"):
            other = self._one()
            found = found and other
        return found

    def _one(self) -> bool:
        if self._takes("("):
            found = self.alternatives()
            return self._takes(")") and found
        return bool(self._tokens) and self._tokens.pop(0) in ALLOWED

    def _takes(self, token: str) -> bool:
        """Remove the next token if it is this one. Return whether it was."""
        if not self._tokens or self._tokens[0].upper() != token:
            return False
        del self._tokens[0]
        return True


def is_allowed(licence: str) -> bool:
    """Return whether an SPDX expression is satisfied by allowed licences."""
    parser = _Parser(licence)
    is_one = parser.alternatives()
    return is_one and parser.is_at_end


def problems(packages: Sequence[tuple[str, str, Sequence[str], str]]) -> list[str]:
    """Return a sentence for each package whose licence is not allowed."""
    found: list[str] = []
    for name, expression, classifiers, text in packages:
        licence = licence_of(expression, classifiers, text)
        if not is_allowed(licence) and ACCEPTED.get(name.lower()) != licence:
            found.append(
                f"{name}: {licence[:60] or 'no licence'} is not in scripts/licences.py: read it, then allow it or drop the package"
            )
    return found


def main() -> None:
    (python,) = sys.argv[1:]
    listed = json.loads(subprocess.run([python, "-c", _LIST], check=True, capture_output=True, text=True).stdout)
    found = problems([(name, expression, classifiers, text) for name, expression, classifiers, text in listed])
    for line in found:
        print(line, file=sys.stderr)
    print(f"licences of {len(listed)} packages read, {len(found)} refused")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
