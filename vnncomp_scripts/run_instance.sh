#!/usr/bin/env bash
# run_instance.sh v1 CATEGORY ONNX VNNLIB RESULTS_FILE TIMEOUT
# VNN-COMP measures this. RESULTS_FILE gets sat, unsat, unknown, timeout or error on its first line, and after sat the
# counterexample. The exit code is 0 whatever the result. SUREBOUND names the command, by default the one in .venv.
set -uo pipefail

if [ "${1:-}" != v1 ]; then
    echo "expected the version string 'v1' as the first argument, got '${1:-}'" >&2
    exit 1
fi
if [ $# -ne 6 ]; then
    echo "usage: run_instance.sh v1 CATEGORY ONNX VNNLIB RESULTS_FILE TIMEOUT" >&2
    exit 1
fi
network=$3 property=$4 results=$5 seconds=$6
grace=5 # seconds past the timeout before the verifier is told to stop, and again before it is killed

tool=$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")
surebound=${SUREBOUND:-$tool/.venv/bin/surebound}
command -v "$surebound" >/dev/null || surebound=surebound

work=$(mktemp -d)
group_file="${TMPDIR:-/tmp}/surebound-vnncomp-$(id -u).group"
group=

end_verifier() {
    [ -z "$group" ] || kill -KILL -- "-$group" 2>/dev/null
}

finish() { # finish VERDICT: write the results file and leave
    if [ "$1" = sat ]; then cp "$work/counterexample" "$results"; else echo "$1" >"$results"; fi
    exit 0
}

trap 'end_verifier; rm -rf "$work" "$group_file"' EXIT
trap 'finish timeout' TERM INT HUP

# The file itself, or its twin with .gz added or removed.
existing() {
    local name
    for name in "$1" "$1.gz" "${1%.gz}"; do
        if [ -r "$name" ]; then echo "$name"; return; fi
    done
    echo "$1 does not exist, with or without .gz" >&2
    return 1
}

mkdir -p "$(dirname "$results")"
rm -f "$results"
network=$(existing "$network") || finish error
property=$(existing "$property") || finish error
if [ "${network%.gz}" != "$network" ]; then
    gunzip -c "$network" >"$work/network.onnx" || finish error
    network=$work/network.onnx
fi
limit=$(awk -v s="$seconds" -v g="$grace" 'BEGIN { if (s !~ /^[0-9]+([.][0-9]+)?$/) exit 1; print s + g }') || {
    echo "expected a timeout in seconds, got '$seconds'" >&2
    finish error
}

# `timeout` makes itself the leader of a new process group, so its number names everything the verifier starts.
timeout --kill-after="$grace" "$limit" "$surebound" verify "$network" "$property" \
    --timeout "$seconds" --counterexample "$work/counterexample" --quiet >"$work/stdout" &
group=$!
echo "$group" >"$group_file"
wait "$group"
code=$?

# A kill before the time was up is not a timeout: the machine ran out of memory, say.
if [ "$code" -eq 124 ] || { [ "$code" -eq 137 ] && [ "$SECONDS" -ge "${seconds%.*}" ]; }; then finish timeout; fi
verdict=$(head -n 1 "$work/stdout")
case "$code $verdict" in
    "0 unsat" | "0 unknown" | "0 timeout") finish "$verdict" ;;
    "0 sat") if [ "$(head -n 1 "$work/counterexample" 2>/dev/null)" = sat ]; then finish sat; fi ;;
esac
finish error
