#!/bin/sh
# Build the documentation site into site/, in an environment of its own. Usage: run.sh [COMMAND…], such as `serve` or `mike deploy 0.1 latest`.
set -eu
cd "$(dirname "$0")/../.."
bin=.venv/docs-site/bin
stamp=.venv/docs-site/.synced

if [ ! -e "$stamp" ] || [ requirements-docs.lock -nt "$stamp" ]; then
    .venv/bin/uv venv --quiet --clear --python .venv/bin/python .venv/docs-site
    VIRTUAL_ENV=.venv/docs-site .venv/bin/uv pip sync --quiet --require-hashes requirements-docs.lock
    touch "$stamp"
fi

# hooks are modules of this repository, and mike starts mkdocs by its name
# NO_MKDOCS_2_WARNING: a notice about the theme's successor, on each build
export NO_MKDOCS_2_WARNING=1 PYTHONPATH="$PWD" PATH="$PWD/$bin:$PATH"
case "${1:-build}" in
    mike) exec "$@" ;;
    build) # with --quiet a strict build would not count warnings
        mkdocs build --strict >.venv/docs-site/log 2>&1 || { grep -v "^INFO" .venv/docs-site/log >&2; exit 1; }
        ;;
    *) exec mkdocs "$@" ;;
esac
