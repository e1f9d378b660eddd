# capline: the commands. `make` alone lists them; each one makes what it needs first.
#
# Everything runs from .venv, which tools/setup.sh makes from requirements.lock and makes again only when the lock changes.
# Settings: PYTHON=/path/to/python3 (3.11 or newer) makes .venv from that interpreter; APT=no installs nothing by apt, and
# names what is missing; PYTEST_ARGS="-k lmdb" picks tests;
# CHAOS_ARGS="--kind valkey --json" goes to the failover experiment; "--short" is its form in the tests, sixty seconds of load.
# CHAOS_ARGS="--picture docs/_static/console.webp" takes README's picture of the console, at the end of `make chaos-up`.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.PHONY: help setup demo up chaos-up test test-newer test-deep steady lint bench docs articles proof chaos lock clean

BIN := .venv/bin
# Five for two cores: tests wait for servers, clocks and processes.
PYTEST_WORKERS ?= 5
PYTEST_ARGS ?=
CHAOS_ARGS ?=
SCALE ?= small
# Only these are read where only these run.
ALONE = $(if $(PYTEST_ARGS),,$(shell grep -rl --include='test_*.py' 'mark.alone' tests))

# A test that hangs fails, with the stack of each thread.
export PYTEST_TIMEOUT ?= 600

# What a shell brings along must not decide what runs: only .venv does.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV
# Tests start hundreds of processes: each would compile all of capline again.
unexport PYTHONDONTWRITEBYTECODE
# pyright ships whole in its wheel: it asks nobody whether there is a newer one.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: ## make .venv with the package, its extras and the tools; does nothing when it is up to date
	@bash tools/setup.sh setup

up: setup ## start the whole system on this machine, until Ctrl-C, and print a link to its console; SCALE=big: 20 million users
	@bash tools/setup.sh up
	@$(BIN)/capline up --scale $(SCALE)

chaos-up: setup ## start it and kill a part every 20 seconds for eight minutes, then judge all that was recorded
	@bash tools/setup.sh test
	@$(BIN)/python -m proof.up $(CHAOS_ARGS)

demo: setup ## see the main job done on real data; the report lands in build/demo
	@$(BIN)/capline demo

# Lint and tests share the two cores, so that neither waits while the other sleeps. The types of the rest: make test-deep.
test: setup ## lint and the tests of every day; PYTEST_ARGS="-k lmdb" picks some
	@bash tools/setup.sh test
	@$(MAKE) -j3 lint-types lint-rest test-together TYPED=src
	$(BIN)/pytest -n 3 --dist loadfile -m "alone and not deep" $(PYTEST_ARGS) $(ALONE) || [ $$? -eq 5 ]

.PHONY: test-together
test-together:
	$(BIN)/pytest -n $(PYTEST_WORKERS) --dist worksteal -m "not alone and not deep" $(PYTEST_ARGS) || [ $$? -eq 5 ]

test-newer: setup ## conformance and the quick unit tests on a newer Python, where the machine has one
	@bash tools/setup.sh newer
	@[ ! -x build/newer/bin/python ] || build/newer/bin/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal -m "not alone and not deep" \
		tests/conformance/test_stores.py tests/conformance/test_server_stores.py tests/unit/limiter tests/unit/model tests/unit/policy tests/unit/store tests/unit/window

.PHONY: deep-together deep-alone
deep-together:
	$(BIN)/pytest -n $(PYTEST_WORKERS) --dist worksteal -m "(deep or sized) and not alone" $(PYTEST_ARGS) || [ $$? -eq 5 ]

deep-alone:
	$(BIN)/pytest -n 2 --dist loadfile -m "(deep or sized) and alone" $(PYTEST_ARGS) $(ALONE) || [ $$? -eq 5 ]

test-deep: setup ## the rest: types of all but src, other combinations, longer random runs, clusters under faults; some 15 minutes
	@bash tools/setup.sh test
	@CAPLINE_TESTS=deep $(MAKE) -j2 lint-types deep-together TYPED="tests bench examples proof"
	@CAPLINE_TESTS=deep $(MAKE) deep-alone

steady: setup ## the tests of every day ten times beside two busy loops
	@bash tools/setup.sh test
	@bash tools/steady.sh

# pyright works on one core; the others share the second.
lint: setup ## ruff, pyright strict, import-linter, bandit, and what is known against the packages
	@$(MAKE) -j2 --output-sync=target lint-types lint-rest

.PHONY: lint-types lint-rest
# Node collects young garbage often by default: with more room for it pyright takes some processor time less.
lint-types:
	NODE_OPTIONS=--max-semi-space-size=64 $(BIN)/pyright --warnings $(TYPED)

lint-rest:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive src proof tools
	$(BIN)/python tools/audit.py

bench: setup ## run the benchmark programs, one after the other; writes docs/reference/benchmarks.md (BENCH_ARGS="--only paths --runs 1")
	@bash tools/setup.sh test
	@$(BIN)/python bench/page.py $(BENCH_ARGS)

docs: setup ## build the site into build/docs, a warning is an error; prints words, pages that are too long, the size
	@$(BIN)/python -m tools.site

articles: setup ## published limiters on the cases that break them, beside capline; writes docs/explanation/articles.md
	@bash tools/setup.sh test
	@$(BIN)/python -m proof.articles

proof: setup ## what takes too long for CI: the long forms of docs/explanation/reliability.md, all combinations, damaged snapshots, a Spark job
	@bash tools/setup.sh test
	@CAPLINE_TESTS=proof $(MAKE) deep-together deep-alone
	@set -e; for part in model simulator changes releases crashes flips concurrency mutants.of_code; do echo "== proof.$$part"; $(BIN)/python -m proof.$$part; done
	@set -e; for round in 1 2 3 4 5 6 7 8; do $(BIN)/pytest -q -m deep tests/distributed/test_campaign_prepare.py; done
	$(BIN)/python tools/fuzz_segments.py
	@PYTHON=$(CURDIR)/$(BIN)/python bash examples/spark_segments/run.sh

chaos: setup ## the failover experiment: a cluster under load and faults; half an hour; docs/explanation/reliability.md
	@bash tools/setup.sh test
	@$(BIN)/python -m proof.chaos $(CHAOS_ARGS)

lock: ## write requirements.lock anew from pyproject.toml; UPGRADE=1 takes the newest of everything
	@bash tools/lock.sh

clean: ## remove .venv, build results and caches
	rm -rf .venv build dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	find src tests bench tools examples proof -name __pycache__ -type d -prune -exec rm -rf {} +
