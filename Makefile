# Every target works from a fresh clone: it makes what it needs first.

PYTHON  ?= python3
# Twice the cores: most tests wait for a server or for a process they killed.
WORKERS ?= 4
# More for pytest: make test ARGS='tests/servers -k proxy'
ARGS    ?=
# How many seeds `make simulate` runs, and where it and `make mutants` write their figures, if anywhere.
SEEDS   ?= 200
JSON    ?=

# For make chaos.
MESSAGES ?= 20000
FAULTS   ?= 300
# For make fuzz: requests of strangers, and forgeries for each kind of webhook.
REQUESTS  ?= 100000
FORGERIES ?= 100000

# The tests kill processes and servers, not the machine: what they write need not reach a disk where memory has room for it.
SCRATCH := $(shell df -k --output=avail /dev/shm 2>/dev/null | awk '$$1 > 4000000 { print "TMPDIR=/dev/shm" }')

# An environment for each Python: make setup PYTHON=python3.13 VENV=.venv-3.13
VENV  ?= .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := bench/.venv/.ready

# Tests start many processes; where Python may not write bytecode, each of them compiles all it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test second lane lint format screenshots crash simulate mutants chaos fuzz proof brokers engines bench bench-peers bench-fairness bench-before bench-60m soak servers pins clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv with everything needed for development

demo: $(READY) ## Watch messages take effect exactly once, through duplicates and a kill -9
	@$(BIN)/onceward demo

test: lint servers ## Lint, then run the whole test suite on real servers
	@$(SCRATCH) $(BIN)/pytest -q -n $(WORKERS) --dist worksteal $(ARGS)

# What every Python must play; the rest is about servers and processes, and is the same on each.
LANE := tests/unit tests/contract tests/test_architecture.py tests/test_startup.py tests/test_pins.py

second: servers ## Run the unit and contract tests on another Python, the newest found or OTHER=python3.13, with coverage
	@other='$(OTHER)'; test -n "$$other" || other=$$($(BIN)/python -m tests.pythons); \
	test -n "$$other" || { echo "second Python: none found, of 3.11 to 3.14, on PATH or in pyenv; the tests ran on one"; exit 0; }; \
	$(MAKE) --no-print-directory lane PYTHON="$$other" \
		VENV=".venv-$$("$$other" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"

lane: $(READY)
	@$(BIN)/coverage erase
	@COVERAGE_CORE=sysmon $(SCRATCH) $(BIN)/coverage run -m pytest -q -n $(WORKERS) --dist worksteal $(LANE)
	@$(BIN)/coverage combine --quiet
	@echo "second Python: $$($(BIN)/python --version)"
	@echo "coverage: $$($(BIN)/coverage report --format=total) % of the lines of src/onceward, by $(LANE)"

lint: $(READY) ## Check style, types and the direction of imports
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY) ## Rewrite the code in the house style
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

simulate: $(READY) ## Run seeded schedules of the real steps with faults: make simulate SEEDS=2000 JSON=file
	@$(BIN)/python -m simulation --seeds $(SEEDS) $(if $(JSON),--json '$(JSON)')

mutants: servers ## Break the code in one way after another: the simulation or a test must catch each (ONLY=part of a name, JSON=file)
	@$(SCRATCH) $(BIN)/python -m mutants $(if $(ONLY),--only '$(ONLY)') $(if $(JSON),--json '$(JSON)')

bench: bench-peers ## Measure onceward beside its limits and its peers (QUICK=1: ten minutes) and write docs/benchmarks.md
	@$(BIN)/python -m bench --scale $(if $(QUICK),quick,full)
	@$(BIN)/python -m bench.page

bench-peers: servers $(PEERS) ## Install the peers of the benchmark in bench/.venv and test every adapter with them
	@ONCEWARD_PEERS=all $(BIN)/pytest -q tests/bench/test_peers.py

bench-fairness: servers ## Measure the fairness scenarios alone and put them into docs/benchmarks.md (two minutes)
	@$(BIN)/python -m bench.again
	@$(BIN)/python -m bench.page

bench-before: servers ## Measure the code before fair claims beside this one and put it into docs/benchmarks.md (ten minutes)
	@$(BIN)/python -m bench.before
	@$(BIN)/python -m bench.page

bench-60m: servers ## Measure claims and dedupe beside sixty million finished rows (forty minutes, 40 GB)
	@$(BIN)/python -m bench.sixty

crash: servers ## Every fault at every statement of every transaction, on both stores
	@$(if $(JSON),ONCEWARD_CRASH_JSON=$(JSON)) $(BIN)/python -m tests.crash $(WORKERS)

chaos: servers ## Real processes under faults on both stores: make chaos MESSAGES=20000 FAULTS=300
	@$(BIN)/python -m chaos --messages $(MESSAGES) --faults $(FAULTS) $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json $(JSON))

fuzz: $(READY) ## Send many requests that nobody should take to the webhooks: make fuzz REQUESTS=100000 FORGERIES=100000
	@$(BIN)/python -m tests.webhooks --requests $(REQUESTS) --forgeries $(FORGERIES) $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json '$(JSON)')

proof: servers ## Run the five long suites and write their figures to docs/proof.md
	@$(MAKE) --no-print-directory crash JSON=proof/figures/crash.json
	@$(MAKE) --no-print-directory simulate SEEDS=20000 JSON=proof/figures/simulate.json
	@$(MAKE) --no-print-directory mutants JSON=proof/figures/mutants.json
	@$(MAKE) --no-print-directory chaos JSON=proof/figures/chaos.json
	@$(MAKE) --no-print-directory fuzz JSON=proof/figures/fuzz.json
	@$(BIN)/python -m proof

brokers: servers ## Run the contract of every broker and write the table in docs/brokers.md
	@ONCEWARD_SOURCES=all ONCEWARD_BROKERS_JSON=proof/figures/brokers.json $(BIN)/pytest -q -n $(WORKERS) --dist worksteal \
		tests/sources/test_contract*.py tests/sinks/test_contract.py
	@$(BIN)/python -m proof.brokers

engines: servers ## Play the contract and a load on another server, and record it: make engines ENGINE=postgres13|postgres14|postgres16|postgres17|postgres18|failover
	@$(SCRATCH) WORKERS=$(WORKERS) $(BIN)/python -m engines $(ENGINE) --json proof/figures/engine-$(ENGINE).json --page

soak: $(READY) ## Run a busy inbox for MINUTES (60), with failures and pruning; fails if anything grows (JSON=file)
	@MINUTES=$(or $(MINUTES),60) JSON='$(JSON)' $(BIN)/python -m bench.soak

screenshots: servers ## Make the pictures of docs/images anew, from the browser tests
	@ONCEWARD_SCREENSHOTS=docs/images $(BIN)/pytest -q tests/dashboard/test_browser.py

servers: $(READY) ## Install the servers of the tests if missing (apt, as root; Kafka by Maven)
	@$(BIN)/python -m tests.servers

pins: $(READY) ## Renew requirements-dev.txt (uv is fetched for this alone)
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
		--upgrade --no-annotate --no-header --quiet --output-file requirements-dev.txt
	@for version in 3.11 3.12 3.13 3.14; do $(BIN)/uv pip compile requirements-dev.txt --python-version $$version \
		--only-binary :all: --quiet --output-file - >/dev/null || { echo "the pins do not install on Python $$version"; exit 1; }; done

clean: ## Remove caches and build output (.venv stays)
	@rm -rf build dist .coverage .coverage.* htmlcov .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests simulation mutants examples bench -name __pycache__ -type d -exec rm -rf {} + 2>/dev/null || true

# The stamp is newer than both lists once they are installed, so a second run has nothing to do.
$(READY): requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "onceward needs Python 3.11 or newer: make setup PYTHON=python3.12"; exit 1; }
	@# Debian's python3 has no ensurepip without python3-venv; the pip it does have can fill the environment.
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) >/dev/null || \
		{ $(PYTHON) -m venv --clear --without-pip $(VENV) && \
		  $(PYTHON) -m pip --quiet --python $(BIN)/python install pip; } || \
		{ rm -rf $(VENV); echo "Cannot make $(VENV). On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all]'
	@touch $@

# Each by itself: one that cannot be installed must not take the others with it. The report names it.
$(PEERS): bench/requirements.txt
	@$(PYTHON) -m venv bench/.venv >/dev/null || \
		{ $(PYTHON) -m venv --clear --without-pip bench/.venv && \
		  $(PYTHON) -m pip --quiet --python bench/.venv/bin/python install pip; }
	@grep -v '^#' bench/requirements.txt | while read -r peer; do \
		bench/.venv/bin/python -m pip install --quiet --disable-pip-version-check "$$peer" || echo "not installed: $$peer"; done
	@touch $@
