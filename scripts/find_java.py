"""Find the Java that Spark needs (17 or 21), or explain how to get it.

``python -m scripts.find_java`` prints its home. With ``--install`` it installs a missing one by apt, where that is possible.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

VERSIONS = (17, 21)
"""The Java versions that all of PySpark 4.0 to 4.3 run on."""
PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")
"""Packages of Debian and Ubuntu. Each of their releases has one of the two."""
FOLDERS = ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines")
ADVICE = (
    "Spark needs Java 17 or 21, and there is none. On Debian and Ubuntu: apt-get install openjdk-17-jre-headless (or -21-);"
    " on macOS: brew install openjdk@17; elsewhere: any JDK or JRE, with JAVA_HOME set to its folder."
)


def candidates() -> Iterator[Path]:
    """Yield the folders that may hold a Java, the user's choice first."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if command := shutil.which("java"):
        yield Path(command).resolve().parents[1]
    for folder in map(Path, FOLDERS):
        for home_folder in sorted(folder.glob("*")):
            yield home_folder / "Contents/Home" if (home_folder / "Contents/Home").is_dir() else home_folder


def version(home: Path) -> int:
    """Return the major version of the Java in `home`, or 0 if there is none."""
    release = home / "release"
    if not (home / "bin/java").is_file():
        return 0
    if release.is_file() and (match := re.search(r'^JAVA_VERSION="(\d+)', release.read_text(), re.MULTILINE)):
        return int(match[1])
    answer = subprocess.run([home / "bin/java", "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)', answer.stderr)
    return int(match[1]) if match else 0


def find_java() -> Path | None:
    """Return the home of a Java that Spark runs on, or None."""
    return next((home for home in candidates() if version(home) in VERSIONS), None)


def install() -> None:
    """Install a Java by apt. No effect where that is impossible."""
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for update in (False, True):
        if update:
            subprocess.run(["apt-get", "update"], stdout=sys.stderr, env=environment, check=False)
        for package in PACKAGES:
            command = ["apt-get", "install", "-y", "--no-install-recommends", package]
            if subprocess.run(command, stdout=sys.stderr, env=environment, check=False).returncode == 0:
                return


def main(arguments: list[str]) -> int:
    home = find_java()
    if home is None and "--install" in arguments:
        install()
        home = find_java()
    if home is None:
        print(ADVICE, file=sys.stderr)
        return 1
    print(home)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
