#!/usr/bin/env bash
# Everything, part by part: goes on after a part that fails, and says in the end how long each took.
set -uo pipefail
cd "$(dirname "$0")/.."
export HYPOTHESIS_PROFILE="${HYPOTHESIS_PROFILE:-thorough}"
pytest=(.venv/bin/python -m pytest -q -n auto --dist worksteal --cov --cov-append --cov-report=)
summary=() failed=0

run() { # NAME COMMAND…
    local name=$1 began=$SECONDS outcome=passed
    shift
    echo "== $name"
    "$@" || { outcome=FAILED; failed=1; }
    summary+=("$(printf '%-14s %-7s %3d min %02d s' "$name" "$outcome" $(((SECONDS - began) / 60)) $(((SECONDS - began) % 60)))")
}

rm -f .coverage .coverage.*
tools/install_services.sh || true
run check make check
run install make check-install
run docs make docs
run wheel make wheel
run tests "${pytest[@]}" -m "not slow and not root and not network"
run slow "${pytest[@]}" -m "slow and not root and not network"
if [ "$(id -u)" = 0 ]; then
    run root "${pytest[@]}" -m "root and not network"
else
    summary+=("root           skipped: run this as root to have its tests")
fi
.venv/bin/coverage report
printf '\n%s\n' "nightly:" && printf '  %s\n' "${summary[@]}"
exit $failed
