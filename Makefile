# One entry for every task; each brings up the environment it needs in .venv.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
SEARCH := $(VENV)/.search
# every file of every release has a hash in the requirements, and anything else is refused; they are complete, so that a
# release of today is not even considered
LOCKED := --require-hashes --no-deps
COMPILE := $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-header --strip-extras
# tests also wait: one process more than there are cores, and at most four
WORKERS := $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 3 ? cores + 1 : 4)))
PARALLEL := -n $(WORKERS) --dist worksteal
UV := $(shell command -v uv 2>/dev/null)
COMPOSE := docker compose --file infra/docker-compose.yml --env-file infra/local/env
RUNNERS ?= 1
# many containers set it; every process of a test would then compile the modules that it imports
unexport PYTHONDONTWRITEBYTECODE

ifdef UV
  INSTALL := $(UV) pip install --quiet --python $(BIN)/python
  UNINSTALL := $(UV) pip uninstall --quiet --python $(BIN)/python
  NO_COMPILE :=
  CREATE := $(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV)
else
  INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
  UNINSTALL := $(BIN)/python -m pip uninstall --quiet --quiet --disable-pip-version-check --yes
  NO_COMPILE := --no-compile
  CREATE := $(PYTHON) -m venv $(VENV)
endif

.PHONY: help
help: ## Show what can be made; ALL=1 shows every target
	@grep -hE '^[a-z-]+:.* #[#$(if $(ALL),+)] ' $(MAKEFILE_LIST) | sed -E 's/:.* #[#+] /\t/' | awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'

$(RUNTIME): requirements/runtime.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Vitrine needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else None'
	@echo "Bringing up the environment in $(VENV) ..."
	@$(CREATE)
	@$(INSTALL) $(NO_COMPILE) $(LOCKED) -r requirements/runtime.txt
	@$(UNINSTALL) vitrine # the name of this distribution in earlier releases; removed first, because both own bin/vitrine
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

# distributions of this repository: they are installed from their folders, and no index is asked for them
TESTING_FOLDER := packages/vitrine-testing
DEVSERVER_FOLDER := packages/vitrine-devserver

# the extra `devserver`
$(SEARCH): $(RUNTIME) requirements/devserver.txt $(DEVSERVER_FOLDER)/pyproject.toml
	@$(INSTALL) $(LOCKED) -r requirements/devserver.txt
	@$(INSTALL) --no-deps --no-build-isolation -e $(DEVSERVER_FOLDER)
	@touch $@

$(DEV): $(RUNTIME) requirements/dev.txt $(TESTING_FOLDER)/pyproject.toml $(DEVSERVER_FOLDER)/pyproject.toml
	@$(INSTALL) $(NO_COMPILE) $(LOCKED) -r requirements/dev.txt
	@$(INSTALL) --no-deps --no-build-isolation -e $(TESTING_FOLDER) -e $(DEVSERVER_FOLDER)
	@touch $@

# the folder and the environment of the Airflow provider; $(call in_airflow,…) makes a command for .venv one for it
AIRFLOW_FOLDER := packages/vitrine-airflow
AIRFLOW_VENV := .venv-airflow
AIRFLOW := $(AIRFLOW_VENV)/.installed
in_airflow = $(subst $(VENV),$(AIRFLOW_VENV),$(1))

$(AIRFLOW): requirements/airflow.txt $(AIRFLOW_FOLDER)/pyproject.toml
	@echo "Bringing up Airflow in $(AIRFLOW_VENV) ..."
	@$(call in_airflow,$(CREATE))
	@$(call in_airflow,$(INSTALL)) $(NO_COMPILE) $(LOCKED) -r requirements/airflow.txt
	@$(call in_airflow,$(INSTALL)) --no-deps --no-build-isolation -e $(AIRFLOW_FOLDER)
	@touch $@

.PHONY: demo
demo: $(RUNTIME) ## Build the sample marts on an embedded PostgreSQL, show and prove them
	@$(BIN)/vitrine demo

.PHONY: demo-search
demo-search: $(SEARCH) ## The same with search indexes, on an Elasticsearch that it starts; the first time it downloads 353 MB
	@$(BIN)/vitrine demo --search

.PHONY: serve
serve: $(RUNTIME) ## Build the marts and stay up: API at http://127.0.0.1:8000, a runner, new ratings
	@$(BIN)/vitrine up

.PHONY: up
up: docker ## Containers with PostgreSQL, Elasticsearch, API and RUNNERS=1, with the sample cinema; random passwords and a new token
	@infra/new-secrets.sh
	$(COMPOSE) build
	@echo "Creating a new access token in infra/local/token ..."
	@umask 077; $(COMPOSE) run --rm -T etl_token > infra/local/token.new && mv infra/local/token.new infra/local/token
	$(COMPOSE) up --detach --scale etl_runner=$(RUNNERS)
	@echo "The console starts at https://localhost:$${ETL_API_PORT:-8000}: log in with the token in infra/local/token."
	@echo "The documentation of the API is at /docs. For example:"
	@echo "  curl --cacert infra/local/tls.crt -H \"Authorization: Bearer \$$(cat infra/local/token)\" https://localhost:$${ETL_API_PORT:-8000}/pipelines"

.PHONY: down
down: docker ## Stop the containers of `make up`; the data stays. `make down DATA=delete` deletes it, with passwords and token
	@infra/new-secrets.sh
	$(COMPOSE) --profile token down --remove-orphans $(if $(filter delete,$(DATA)),--volumes)
	$(if $(filter delete,$(DATA)),rm -rf infra/local)

.PHONY: migrate-db
migrate-db: docker #+ Bring the store of `make up` to the present release, with its roles
	@infra/new-secrets.sh
	$(COMPOSE) run --rm --build etl_migrate

.PHONY: logs
logs: docker ## Follow the logs of `make up`; SERVICE=etl_runner shows one service
	@infra/new-secrets.sh
	$(COMPOSE) logs --follow --tail 100 $(SERVICE)

.PHONY: docker
docker:
	@docker compose version >/dev/null 2>&1 || { echo "this needs Docker with its plugin compose; without Docker, use make serve" >&2; exit 1; }

.PHONY: check
check: $(DEV) ## Format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/basedpyright

.PHONY: tools
tools: #+ Install the programs of .ci/tools that the tests use and that are missing, if apt-get can be used
	@.ci/install_tools

# what may depend on the version: statements of the store, catalogs, types, locks, transactions that others see; EVERY=1: all
# but what has no PostgreSQL of its own
ON_16 := $(if $(EVERY),tests/integration --ignore-glob="*/test_search_*.py" --ignore-glob="*/test_console_*.py",\
  $(foreach name,accounts cursor_coverage cursor_disorder cursor_zones definitions first_load full hidden_nulls horizon \
  incremental known_types locks missing_relations publishing quarantine read_plans reconcile row_security standby store \
  target_identity target_rules unique_swaps validation,tests/integration/test_$(name).py))

# not $(MAKE) in the recipe: `make -n` would run the line, and so the tests
MAKE_BESIDE := $(MAKE) --no-print-directory

.PHONY: test
test: $(DEV) tools ## Every test but those of `make nightly`: on PostgreSQL 18, partly on 16, the provider under a real Airflow
	.ci/beside '$(BIN)/python -m pytest -q $(PARALLEL) -m "not nightly" tests' '$(MAKE_BESIDE) test-airflow test-versions'

.PHONY: test-versions
test-versions: $(DEV) #+ What depends on the version, on embedded PostgreSQL 16; EVERY=1: every test of the store and the data path
	VITRINE_TEST_POSTGRES=16 $(BIN)/python -m pytest -q $(ON_16)

.PHONY: test-airflow
test-airflow: $(DEV) $(AIRFLOW) #+ The Airflow provider: its types, and its tests under a real Airflow
	$(BIN)/basedpyright --project $(AIRFLOW_FOLDER) --pythonpath $(AIRFLOW_VENV)/bin/python
	$(BIN)/python -m pytest -q $(AIRFLOW_FOLDER)/tests

.PHONY: fmt
fmt: $(DEV) ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: mutants
mutants: $(DEV) ## Remove each protection in a scratch copy; the test that the table names must then fail
	$(BIN)/python -m tests.mutants.run

.PHONY: guarantees
guarantees: $(DEV) #+ Write docs/guarantees-tests.md, the tests behind each promise, from the marks in the tests
	$(BIN)/python -m tests.guarantees

.PHONY: api-table
api-table: $(DEV) #+ Write the table of routes in docs/api.md
	$(BIN)/python -m tests.api_table

.PHONY: fuzz
fuzz: $(DEV) #+ schemathesis against the running API, SECONDS=600 SEED=1: no error of the server, no answer that the OpenAPI document does not allow
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

.PHONY: schema
schema: $(DEV) #+ Write docs/pipeline.schema.json, the JSON Schema of a pipeline's YAML file
	$(BIN)/vitrine schema > docs/pipeline.schema.json

.PHONY: types
types: $(DEV) #+ Write docs/types.md, how every type is carried, from runs on the embedded PostgreSQL
	$(BIN)/python -m tests.type_matrix

.PHONY: property
property: $(DEV) #+ Tables of any shape under changes and crashes, STEPS=10000: every mart equals its query, or the run is refused; SEED=1 repeats one round
	VITRINE_TEST_STEPS=$(or $(STEPS),10000) $(if $(SEED),VITRINE_TEST_SEED=$(SEED)) $(BIN)/python -m pytest -q tests/property/test_any_table.py
	VITRINE_TEST_STEPS=$$(($(or $(STEPS),10000) / 10)) $(if $(SEED),VITRINE_TEST_SEED=$(SEED)) $(BIN)/python -m pytest -q tests/property/test_mart_equals_source.py

.PHONY: reconcile
reconcile: $(DEV) #+ Random damage to a mart and its source under writers, STEPS=10000 SEED=1: every key is found, none is invented
	VITRINE_TEST_STEPS=$(or $(STEPS),10000) $(if $(SEED),VITRINE_TEST_SEED=$(SEED)) $(BIN)/python -m pytest -q tests/integration/test_reconcile_random.py

.PHONY: chaos
chaos: $(DEV) ## Runners die, connections break, the server crashes: SECONDS=60 SEED=1; every mart must be right
	$(BIN)/python -m tests.chaos --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED))

.PHONY: nightly
nightly: $(DEV) ## What takes long: tests marked so, PostgreSQL 16, chaos, schedules, property, crashes, mutants, fuzz, peers; two hours
	$(BIN)/python -m pytest -q $(PARALLEL) -m nightly tests
	$(MAKE) test-versions EVERY=1
	$(MAKE) chaos SECONDS=$(or $(SECONDS),1800)
	$(MAKE) schedules
	$(MAKE) property
	$(MAKE) crashes
	$(MAKE) mutants
	$(MAKE) fuzz
	$(MAKE) bench-peers

.PHONY: crashes
crashes: $(DEV) #+ A crash, a failure and a takeover at every point of a run; `make test` takes every third, for Elasticsearch every twelfth
	VITRINE_TEST_STRIDE=1 $(BIN)/python -m pytest -q $(PARALLEL) tests/conformance -k any_point

.PHONY: schedules
schedules: SECONDS ?= 120
schedules: $(DEV) #+ A scheduled pipeline under three runners, SECONDS=120: no due time missed, none run twice
	VITRINE_TEST_SCHEDULE_SECONDS=$(SECONDS) $(BIN)/python -m pytest -q tests/acceptance/test_schedules.py

.PHONY: bench
bench: $(DEV) ## Measure Vitrine beside psql doing the same work by hand
	$(BIN)/python -m bench

.PHONY: bench-peers
bench-peers: $(DEV) #+ The same, and dlt, ingestr, Sling and reladiff from their packages
	$(BIN)/python -m bench --peers

.PHONY: bench-compare
bench-compare: $(DEV) ## Compare this tree with another one: AGAINST=../old ROUNDS=9 ROWS=F1,I1 SCALE=1; fails if a row is slower
	$(BIN)/python -m bench --against $(or $(AGAINST),$(error give the folder of the other tree: make bench-compare AGAINST=../old)) --rounds $(or $(ROUNDS),9) --scale $(or $(SCALE),1)$(if $(ROWS), --only $(ROWS))

.PHONY: requirements
requirements: $(DEV) ## Compile the pinned requirements with their hashes again (no addresses in them)
	$(COMPILE) --extra api --extra console --extra elasticsearch --extra embedded --extra frames --output-file requirements/runtime.txt pyproject.toml requirements/build.in
	$(COMPILE) --constraint requirements/runtime.txt --output-file requirements/build.txt requirements/build.in
	$(COMPILE) --constraint requirements/runtime.txt --extra api --extra console --extra elasticsearch --extra frames --output-file requirements/image.txt pyproject.toml
	$(COMPILE) --constraint requirements/runtime.txt --output-file requirements/devserver.txt requirements/devserver.in
	$(COMPILE) --constraint requirements/runtime.txt --output-file requirements/dev.txt pyproject.toml requirements/devserver.in requirements/dev.in
	$(COMPILE) --output-file requirements/airflow.txt $(AIRFLOW_FOLDER)/pyproject.toml requirements/build.in

.PHONY: sample-sql
sample-sql: $(DEV) #+ Write sql/init_demo_data.sql, the sample cinema as one script for psql
	$(BIN)/python -m tests.sample_sql

.PHONY: screenshots
screenshots: $(DEV) tools ## Pictures of every page of the console in screenshots/, at two widths, light and dark
	$(BIN)/python -m tests.screenshots

.PHONY: licenses
licenses: $(DEV) #+ Write docs/licenses.md, the licences of all that is installed, from the metadata of the packages
	$(BIN)/python -m tests.licenses

.PHONY: clean
clean: ## Remove the environments and the demo's data
	rm -rf $(VENV) $(AIRFLOW_VENV) .vitrine
