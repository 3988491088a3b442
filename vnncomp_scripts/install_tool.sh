#!/usr/bin/env bash
# install_tool.sh v1
# VNN-COMP calls this once: it sets up surebound in .venv beside this folder. PYTHON chooses the interpreter.
set -euo pipefail

if [ "${1:-}" != v1 ]; then
    echo "expected the version string 'v1' as the first argument, got '${1:-}'" >&2
    exit 1
fi
tool=$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

python=${PYTHON:-python3}
if ! command -v make >/dev/null || ! "$python" -c 'import ensurepip' 2>/dev/null; then
    as_root apt-get update
    as_root apt-get install -y make python3 python3-venv
fi
make -C "$tool" PYTHON="$python" .venv/.installed
