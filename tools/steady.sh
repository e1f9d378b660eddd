#!/bin/bash
# The tests of every day, several times, each beside two loops that take the machine's time: a test that fails now and then
# is broken.
#
#   tools/steady.sh          ten times
#   tools/steady.sh 3 -k redis
#
# One line a run: number, seconds, how it ended; then how many passed. What pytest said of a run that failed is kept in
# build/steady. Exit code 0: all passed; 1: some did not; 2: bad input. A run that takes longer than LIMIT_S seconds (3600)
# is ended, and has failed.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

times=10
if [[ $# -gt 0 && $1 != -* ]]; then
    times=$1
    shift
fi
if ! [[ $times =~ ^[1-9][0-9]{0,2}$ ]]; then
    echo "steady: '$times' is no number of runs; give one from 1 to 999, and then arguments for pytest" >&2
    exit 2
fi
pytest=.venv/bin/pytest
[[ -x $pytest ]] || pytest=$(command -v pytest) || {
    echo "steady: there is no pytest; run make setup" >&2
    exit 2
}

loops=()
for _ in 1 2; do
    while :; do :; done &
    loops+=($!)
done
trap 'kill "${loops[@]}" 2>/dev/null' EXIT
trap 'exit 130' INT TERM

mkdir -p build/steady
failed=0
for ((run = 1; run <= times; run++)); do
    begun=$SECONDS said=build/steady/$run.txt ended="no test was chosen"
    rm -f "$said" "$said.part"
    for part in "-n 5 --dist worksteal|not alone and not deep" "-n 3 --dist loadfile|alone and not deep"; do
        # shellcheck disable=SC2086 # the options are words
        timeout "${LIMIT_S:-3600}" "$pytest" ${part%%|*} -m "${part#*|}" "$@" >>"$said.part" 2>&1 </dev/null
        code=$?
        # 5: no test of this part was chosen.
        ((code == 5)) && continue
        if ((code == 0)); then
            [[ $ended == failed* ]] || ended=passed
            continue
        fi
        ended="failed ($code): $(grep -m 3 -E '^(FAILED|ERROR)' "$said.part" | cut -d ' ' -f 2 | paste -sd ' ')"
    done
    if [[ $ended == passed ]]; then
        rm -f "$said.part"
    else
        mv "$said.part" "$said"
        failed=$((failed + 1))
    fi
    echo "run $run of $times: $((SECONDS - begun)) s, $ended"
done
echo "$((times - failed)) of $times passed"
((failed == 0))
