#!/usr/bin/env bash
# Write a tiny network with two properties, look at it, and verify both: the first holds, the second does not.
# Run it where `surebound` is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python tiny.py "$work"
cd "$work"

run() {
    echo
    echo "\$ surebound $*"
    surebound "$@"
}

# Run a verification and compare the first line of its output with the verdict we know.
expect() {
    local verdict=$1 output
    shift
    echo
    echo "\$ surebound $*"
    output=$(surebound "$@")
    echo "$output"
    if ! grep -qx "$verdict" <<<"$output"; then
        echo "expected $verdict" >&2
        exit 1
    fi
}

run inspect tiny.onnx holds.vnnlib
expect unsat verify tiny.onnx holds.vnnlib
expect sat verify tiny.onnx fails.vnnlib --counterexample counterexample.txt
echo
echo "\$ cat counterexample.txt"
cat counterexample.txt
