#!/bin/sh
# Bring .venv up to date: create it, install exactly what requirements.lock pins, install RaftMQ itself as editable.
# PYTHON chooses the interpreter for a new .venv. Quick when nothing changed: one stamp comparison and one re-link.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
bin=.venv/bin
stamp=.venv/.synced

say() { echo "setup: $*" >&2; }

if [ ! -x "$bin/python" ]; then
    command -v "$python" >/dev/null || { say "no '$python' found; install Python 3.11 or newer, or name one: make setup PYTHON=/path/to/python3.12"; exit 1; }
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        say "$("$python" --version 2>&1) is too old; RaftMQ needs Python 3.11 or newer: make setup PYTHON=python3.12"
        exit 1
    }
    say "creating .venv with $("$python" --version 2>&1)"
    "$python" -m venv .venv || { say "python -m venv failed (on Debian and Ubuntu: apt install python3-venv)"; rm -rf .venv; exit 1; }
fi

# The stamp is written last, so an interrupted set-up is simply done again. It must be newer than both files it stands for.
if [ ! -e "$stamp" ] || [ requirements.lock -nt "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
    version=$(sed -n 's/^uv==\([^ ]*\).*/\1/p' requirements.lock)
    if [ ! -x "$bin/uv" ] || [ "$("$bin/uv" --version | cut -d' ' -f2)" != "$version" ]; then
        "$bin/python" -m pip install --quiet --disable-pip-version-check "uv==$version"
    fi
    say "installing what requirements.lock pins"
    VIRTUAL_ENV=.venv "$bin/uv" pip sync --quiet --require-hashes requirements.lock
    relink=1
fi

# A strict editable install lists every file it exposes, so that nothing else at the root can be imported by accident. The price:
# a new or removed module shows only after a re-install. The list of modules tells whether one is due.
modules=$(find api raft fsm assignors storage broker client spark cli pyspark_raftmq -name '*.py' -o -name '*.pyi' -o -name py.typed | LC_ALL=C sort)
if [ -n "${relink:-}" ] || [ "$modules" != "$(cat .venv/.modules 2>/dev/null)" ] || [ ! -d .venv/modules ]; then
    # editable_mode=strict comes from [tool.uv] in pyproject.toml; setuptools is in the lock, so nothing is fetched to build.
    VIRTUAL_ENV=.venv "$bin/uv" pip install --quiet --no-deps --no-build-isolation --reinstall-package raftmq -e .
    # setuptools leaves the links in build/ and its notes in *.egg-info: nothing but .venv shall remain
    rm -rf .venv/modules raftmq.egg-info
    mv build/__editable__.raftmq-* .venv/modules
    rm -rf build
    "$bin/python" - <<'PYTHON'
import pathlib, sysconfig
[link] = pathlib.Path(sysconfig.get_path("purelib")).glob("__editable__.raftmq-*.pth")
link.write_text(f"{pathlib.Path('.venv/modules').resolve()}\n")
PYTHON
    printf '%s\n' "$modules" >.venv/.modules
fi
touch "$stamp"
