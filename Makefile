# The tasks of this project. `make test` is what CI runs; `make check` is a synonym for people who look for it.
.DEFAULT_GOAL := help
.PHONY: help setup setup-test demo test check test-fast test-pythons test-kill test-engines test-takeover test-elastic test-balance test-simulation test-drivers test-races test-sinks test-stores test-leaks test-certificates test-verify test-monitoring test-page test-deploy test-spark-elsewhere test-blackbox test-stories test-demos test-mutants test-mongodb-peer docs test-docs fuzz lint types imports format bench clean
SHELL := /bin/bash
BIN := .venv/bin
PYTEST := $(BIN)/python .ci/leaves-nothing $(BIN)/python -m pytest
# Tests that only compute take a core each, one by one. Those with servers and Spark wait for most of their time, so that
# several processes are at work at once, each with servers of its own; `tests/distribution.py` shares the tests out.
ALL_CORES := -n logical --dist worksteal
SEVERAL := -n 4 --dist loadfile
# From what fails fast to what takes long. What plays epochs into files computes all the time; into servers, it waits.
UNIT := tests/unit tests/protocol tests/simulation
FAST := $(UNIT) tests/epochs
SERVERS := tests/kill tests/e2e tests/spark tests/blackbox tests/integration tests/epochs

help: ## This list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: ## Make this machine able to run raycdc: .venv, Java, MariaDB, Spark's jars (idempotent)
	@.ci/setup

setup-test:
	@.ci/setup test

demo: setup ## A small shop in a private MariaDB, followed into a Delta lake in ./demo-lake (raycdc demo --help: other pairs)
	@$(BIN)/raycdc demo

test: setup-test lint ## Everything: style, types, layers and all tests on real servers
	@.ci/beside "$(PYTEST) $(SEVERAL) --durations=20 -m 'not bare and not long and not blackbox_long' $(SERVERS)" \
		"$(BIN)/lint-imports && $(BIN)/mypy && $(PYTEST) $(ALL_CORES) --durations=20 -m 'bare and not long' $(FAST)"

check: test

test-fast: setup lint ## Unit, protocol and simulation tests only (no server, no Spark)
	$(PYTEST) $(ALL_CORES) -m "not long" $(UNIT)

test-pythons: setup-test ## The unit tests on Python 3.12 and 3.13, where these are installed
	.ci/pythons $(ALL_CORES) -m "bare and not long" tests/unit

test-kill: setup-test ## Kill tests with many seeds; prints the table of the manual (tests)
	RAYCDC_KILL_SEEDS=$${RAYCDC_KILL_SEEDS:-10} $(PYTEST) tests/kill

test-engines: setup-test ## Ray, Spark or the run itself is killed at each step of a hand-over, and Spark where rows need it (some minutes)
	$(PYTEST) tests/kill/test_hand_over.py tests/kill/test_spark_ends.py

test-takeover: setup-test ## Twenty standbys of each kind take over; stopped drivers; lost nodes and heads of Ray; SIGTERM at any moment
	$(PYTEST) -n 2 --dist worksteal tests/kill/test_takeovers.py tests/kill/test_stopped_drivers.py \
		tests/kill/test_store_kills.py tests/kill/test_cluster_lost.py tests/kill/test_node_death.py \
		tests/kill/test_service_ends.py

test-elastic: setup-test ## A Ray cluster that scales: nodes come under a run, read, and are given back (about half an hour)
	$(PYTEST) tests/kill/test_elastic.py tests/kill/test_spool_servers.py tests/kill/test_reader_places.py tests/e2e/test_two_nodes.py

test-simulation: setup ## A whole job under faults, simulated: 1,000 seeds of each of four kinds (about ten minutes)
	RAYCDC_SIM_SEEDS=$${RAYCDC_SIM_SEEDS:-1000} $(PYTEST) $(ALL_CORES) tests/simulation/test_simulation.py

test-drivers: setup ## Drivers of one state that die anywhere, simulated: 3,000 seeds (about ten minutes)
	RAYCDC_DRIVER_SEEDS=$${RAYCDC_DRIVER_SEEDS:-3000} $(PYTEST) $(ALL_CORES) tests/simulation/test_drivers.py

test-races: setup-test ## The hand-off under aimed writes: 2,000 chunks on each kind of server; a log beyond 4 GiB; types
	$(PYTEST) -s -m long tests/integration/test_hand_off_races.py tests/integration/connectors/mysql/test_mysql_far_log.py \
		tests/integration/connectors/mysql/test_mysql_conversions.py tests/integration/connectors/mongodb/test_mongodb_races.py

test-sinks: setup-test ## Every way of writing of every sink, failing at every point, with transforms too; the whole suite of sinks for topics
	$(PYTEST) $(SEVERAL) tests/epochs/test_epoch_loop.py
	$(PYTEST) $(SEVERAL) tests/epochs --deselect tests/epochs/test_epoch_loop.py \
		-k "at_any_point or at_any_step or whatever_dies or between_the_targets"
	$(PYTEST) -m long tests/spark
	$(PYTEST) tests/integration/sinks/test_topic_conformance.py
	$(PYTEST) -m long tests/integration/sinks/test_kafka_sink.py

test-stores: ## Object stores: clients that race at S3Mock, moto, Azurite (needs npm) and Google's (needs Go), long stories of targets there
	@.ci/setup stores
	$(PYTEST) $(SEVERAL) tests/integration/stores tests/integration/sinks/test_iceberg_stores.py \
		tests/integration/sinks/test_file_stores.py tests/integration/sinks/test_azure_stores.py tests/e2e/test_stores.py \
		tests/e2e/test_live_tables.py

test-leaks: setup-test ## The sweep for secrets and values of rows over processes, Ray, Spark, logs and files
	$(PYTEST) tests/e2e/test_nothing_leaks.py tests/integration/test_secrets_in_refusals.py

test-certificates: setup-test ## Certificates of every kind against every client, passwords that change under a run, odd names through every sink
	$(PYTEST) tests/integration/test_certificates.py tests/e2e/test_rotation.py tests/e2e/test_rotation_clients.py tests/e2e/test_rotation_catalogs.py tests/integration/stores/test_rotated_keys.py tests/e2e/test_names_everywhere.py

test-verify: setup-test ## verify finds what was planted among 5 million rows, and raises no alarm in 100 comparisons under load
	$(PYTEST) -n 2 --dist worksteal tests/e2e/test_verify.py tests/e2e/test_verify_places.py tests/e2e/test_verify_wanted.py
	$(PYTEST) -s tests/e2e/test_verify_long.py

test-monitoring: setup-test ## Each alert of examples/monitoring fires and clears by a real fault, in a real Prometheus (needs apt)
	$(PYTEST) -m long tests/e2e/test_alerts.py tests/e2e/test_traces.py

test-deploy: ## The wheel outside a checkout, the steps of the Dockerfile, two machines with ray start (needs root and apt)
	@.ci/setup deploy
	$(PYTEST) -m long tests/e2e/test_installed.py tests/e2e/test_container.py tests/e2e/test_two_machines.py

test-spark-elsewhere: setup-test ## Spark with executors that share no disk with the driver (network namespaces: needs root)
	$(PYTEST) tests/e2e/test_spark_elsewhere.py tests/integration/bridge

test-balance: setup-test ## A hot partition of a topic gets a reader of its own; topics and change streams read at a pace (some minutes)
	$(PYTEST) -m long tests/e2e/test_hot_partition.py tests/integration/test_source_pace.py

test-blackbox: setup-test ## Stories of DDL, types, broken surroundings, damaged state: both servers, three sinks
	$(PYTEST) $(SEVERAL) tests/blackbox

test-stories: setup-test ## What `make test` tells in a cheaper form: the tutorial into PostgreSQL; plan as check; a bench of every system; states moved; tables that go on
	$(PYTEST) $(SEVERAL) -m long tests/e2e/test_shop_tutorial.py tests/e2e/test_transforms.py tests/e2e/test_bench.py \
		tests/e2e/test_backfill.py tests/e2e/test_resumed_tables.py tests/e2e/test_mongodb_sink.py tests/unit/upkeep

test-demos: setup-test ## The demo of every pair of a source and a target, each with servers of its own (about a quarter of an hour)
	$(PYTEST) -n 2 --dist worksteal -m long tests/e2e/test_demo.py

test-mutants: setup-test ## Take some 200 rules out, one at a time: a test must notice each (about a quarter of an hour)
	$(BIN)/python -m tests.mutants.run

test-mongodb-peer: setup-test ## MongoDB's tests on SecantusDB, a server of its protocol by others (from PyPI)
	RAYCDC_TEST_MONGODB_URI=secantusdb $(PYTEST) $(SEVERAL) -m "not long" $(wildcard tests/kill/test_mongodb*.py \
		tests/e2e/test_mongodb*.py tests/e2e/test_lookups.py tests/integration/*/test_mongodb*.py \
		tests/integration/connectors/mongodb/test_*.py tests/integration/lookup/test_*.py)

test-page: ## The page of a run in a headless Chromium: its figures, buttons, keyboard, contrast; pictures in build/page (needs apt)
	@.ci/setup browser
	$(PYTEST) -m long tests/e2e/test_page.py

docs: setup ## The manual as a site in build/site, which needs no network to be read (links are checked)
	@.ci/docs

test-docs: docs setup-test ## Links of the manual's site, its search in Chromium without a network; every command of README and manual as it stands
	$(PYTEST) -m long tests/e2e/test_docs_site.py tests/integration/test_manual_commands.py

fuzz: setup ## Damage real binlogs 100,000 times: named errors, no crash, no wrong row (about five minutes)
	$(BIN)/python -m tests.fuzz.binlog --mutations 100000

lint: setup ## Style: ruff's rules and its formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

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
