#!/usr/bin/env bash
# prepare_instance.sh v1 CATEGORY ONNX VNNLIB
# VNN-COMP calls this before each instance, outside the measured time: it ends what an earlier instance left running and
# checks that the files are there, as given or with .gz added or removed.
set -euo pipefail

if [ "${1:-}" != v1 ]; then
    echo "expected the version string 'v1' as the first argument, got '${1:-}'" >&2
    exit 1
fi
if [ $# -ne 4 ]; then
    echo "usage: prepare_instance.sh v1 CATEGORY ONNX VNNLIB" >&2
    exit 1
fi

# run_instance.sh leaves the process group of its verifier here. The group is ended only if a surebound is still in it.
group_file="${TMPDIR:-/tmp}/surebound-vnncomp-$(id -u).group"
if [ -f "$group_file" ]; then
    group=$(tr -cd 0-9 <"$group_file")
    if [ -n "$group" ] && pgrep -g "$group" -f surebound >/dev/null; then
        kill -KILL -- "-$group" 2>/dev/null || true
    fi
    rm -f "$group_file"
fi

for file in "$3" "$4"; do
    if [ ! -r "$file" ] && [ ! -r "$file.gz" ] && [ ! -r "${file%.gz}" ]; then
        echo "$file does not exist, with or without .gz" >&2
        exit 1
    fi
done
