# The tasks of this project. `make test` is what CI runs; a release also runs `make test-long`.
.DEFAULT_GOAL := help
.PHONY: help setup setup-test demo test check test-fast test-long docs wheel lint types imports format bench clean
SHELL := /bin/bash
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# `phase NAME COMMAND` says what a command took and started, and leaves no process.
PHASE := .ci/phase
# Tests that only compute take a core each, one by one. Those with servers and Spark wait for most of their time, so that
# several processes are at work at once, each with servers of its own; `tests/distribution.py` shares the tests out.
ALL_CORES := -n logical --dist worksteal
SEVERAL := -n 5 --dist loadfile
# From what fails fast to what takes long. What plays epochs into files computes all the time; into servers, it waits.
UNIT := tests/unit tests/protocol tests/simulation
SERVERS := tests/kill tests/e2e tests/spark tests/blackbox tests/integration tests/epochs

help: ## This list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: ## Make this machine able to run raycdc: .venv, Java, MariaDB, Spark's jars (idempotent)
	@$(PHASE) setup .ci/setup

setup-test:
	@$(PHASE) setup .ci/setup test

demo: setup ## A small shop in a private MariaDB, followed into a Delta lake in ./demo-lake (raycdc demo --help: other pairs)
	@$(BIN)/raycdc demo

test: setup-test lint ## Everything but what is long: style, types, layers, tests on real servers (about 20 minutes on two cores)
	@.ci/parallel "$(PHASE) servers $(PYTEST) $(SEVERAL) --durations=20 -m 'not bare and not long' $(SERVERS)" \
		"$(PHASE) layers $(BIN)/lint-imports && $(PHASE) types $(BIN)/mypy && \
		$(PHASE) computed $(PYTEST) $(ALL_CORES) --durations=20 -m 'bare and not long' $(UNIT) tests/epochs"

check: test

test-fast: setup lint ## Unit, protocol and simulation tests only (no server, no Spark)
	$(PHASE) computed $(PYTEST) $(ALL_CORES) -m "not long" $(UNIT)

test-long: setup ## What is long, in suites that `make test-long SUITE=help` lists: SUITE="kill stores", or all, as a release does
	@$(BIN)/python -m tests.long $(if $(filter help,$(SUITE)),--help,$(SUITE))

docs: setup ## The manual as a site in build/site, which needs no network to be read (links are checked)
	@.ci/docs

wheel: setup ## The package for pip in dist/
	$(BIN)/python -m hatchling build -t wheel

lint: setup ## Style: ruff's rules and its formatting
	@$(PHASE) style bash -c "$(BIN)/ruff check . && $(BIN)/ruff format --check ."

types: setup ## mypy --strict over package and tests
	$(BIN)/mypy

imports: setup ## The layers of ARCHITECTURE.md
	@$(BIN)/lint-imports

format: setup ## Let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup-test ## Measure raycdc beside its peers on real servers
	$(BIN)/python -m bench binlog --json
	$(BIN)/python -m bench snapshot --json
	$(BIN)/raycdc bench splits --json
	$(BIN)/python -m bench pipeline --json
	$(BIN)/python -m bench sinks --json
	$(BIN)/python -m bench mongodb --json
	$(BIN)/python -m bench scale --json

clean: ## Remove what tests and demos leave in this folder (not the downloads)
	rm -rf demo-lake state lake spark-warehouse metastore_db .mypy_cache .ruff_cache .hypothesis
