#!/usr/bin/env bash
# Everything, part by part: goes on after a part that fails, and says in the end how long each took.
# FUZZ_MINUTES=60: how long random SQL is compared with DuckDB.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
times=$PWD/build/test-times.txt
pytest=(env HYPOTHESIS_PROFILE="${HYPOTHESIS_PROFILE:-thorough}" .venv/bin/python -m pytest -q -n auto --dist worksteal)
pytest+=(--cov --cov-append --cov-report=)
summary=() failed=0

run() { # NAME COMMAND…
    local name=$1 began=$SECONDS outcome=passed
    shift
    echo "== $name"
    "$@" || { outcome=FAILED; failed=1; }
    summary+=("$(printf '%-14s %-7s %3d min %02d s' "$name" "$outcome" $(((SECONDS - began) / 60)) $(((SECONDS - began) % 60)))")
}

rm -f .coverage .coverage.* "$times"
if tools/install_services.sh; then export CI=true; fi # what is there must not be skipped
run test env TABLEPUPPET_TEST_TIMES="$times" make test
run tiers .venv/bin/python tools/check_tiers.py "$times"
run install make check-install
run docs make docs
run wheel make wheel
run laws "${pytest[@]}" -m "not slow and not root and not network"
run slow "${pytest[@]}" -m "slow and not root and not network"
if [ "$(id -u)" = 0 ]; then
    run root "${pytest[@]}" -m "root and not network"
else
    summary+=("root           skipped: run this as root to have its tests")
fi
# Other seeds every day: days since 1970, and room for 100,000 cases.
run fuzz .venv/bin/python -m tests.fuzz --minutes "${FUZZ_MINUTES:-60}" --seed "$(($(date +%s) / 86400 * 100000))"
.venv/bin/coverage report
printf '\n%s\n' "nightly:" && printf '  %s\n' "${summary[@]}"
exit $failed
