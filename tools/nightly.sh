#!/usr/bin/env bash
# Everything once, part by part: goes on after a part that fails, and says in the end how long each took.
# Laws are tests by hypothesis: make test draws a few examples, and the part of this name many.
# FUZZ_MINUTES=60: how long random SQL is compared with DuckDB, by all cores together.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
times=$PWD/build/test-times.txt
unset PYTHONDONTWRITEBYTECODE # tests start hundreds of processes, and each would compile the package again
pytest=(env OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 HYPOTHESIS_PROFILE="${HYPOTHESIS_PROFILE:-thorough}")
pytest+=(.venv/bin/python -m pytest -q -n auto --dist worksteal)
summary=() failed=0

run() { # NAME COMMAND…
    local name=$1 began=$SECONDS outcome=passed
    shift
    echo "== $name"
    "$@" || { outcome=FAILED; failed=1; }
    add_line "$name" "$outcome" $((SECONDS - began))
}

add_line() { # NAME OUTCOME SECONDS
    summary+=("$(printf '%-14s %-7s %3d min %02d s' "$1" "$2" $(($3 / 60)) $(($3 % 60)))")
    echo "${summary[-1]}"
}

fuzz() { # other seeds every day: days since 1970, and room for 100,000 cases
    local cores minutes seed processes=() status=0
    cores=$(nproc) seed=$(($(date +%s) / 86400 * 100000))
    minutes=$(awk "BEGIN { print ${FUZZ_MINUTES:-60} / $cores }")
    for ((core = 0; core < cores; core++)); do
        OMP_NUM_THREADS=1 .venv/bin/python -m tests.fuzz --minutes "$minutes" \
            --seed "$((seed + core * 100000 / cores))" &
        processes+=($!)
    done
    for process in "${processes[@]}"; do wait "$process" || status=1; done
    return $status
}

rm -f .coverage .coverage.* "$times"
if tools/install_services.sh; then export CI=true; fi # what is there must not be skipped
run test env TABLEPUPPET_TEST_TIMES="$times" make test COVERAGE="--cov --cov-report="
run tiers .venv/bin/python tools/check_tiers.py "$times"
run install make check-install
run docs make docs
run wheel make wheel
run laws "${pytest[@]}" -m "hypothesis and not slow and not root and not network"
run slow "${pytest[@]}" -m "slow and not root and not network"
if [ "$(id -u)" = 0 ]; then
    run root "${pytest[@]}" -m "root and not network"
else
    summary+=("root           skipped: run this as root to have its tests")
fi
run fuzz fuzz
.venv/bin/coverage report
add_line everything "$( ((failed)) && echo FAILED || echo passed)" $SECONDS
printf '\n%s\n' "nightly:" && printf '  %s\n' "${summary[@]}"
exit $failed
