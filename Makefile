# Every target works from a fresh clone: it makes what it needs first.

PYTHON  ?= python3
# Twice the cores: most tests wait for a server or for a process they killed.
WORKERS ?= 4
# More for pytest: make test ARGS='tests/servers -k proxy'
ARGS    ?=
# How many seeds `make simulate` runs, on which stores, and where the long suites write their figures, if anywhere.
SEEDS   ?= 200
STORE   ?=
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
OTHERS := faults/.venv/.ready
SITE  := .venv-docs/.ready

# Tests start many processes; where Python may not write bytecode, each of them compiles all it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup pictures package docs demo test whole second lane lint format screenshots crash kills simulate mutants mutation chaos skew faults fuzz proof check-records brokers engines hops bench bench-mysql bench-peers bench-fairness bench-before bench-dashboard bench-60m sizing soak servers pins clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv with everything needed for development

demo: ## Watch a careless consumer and onceward take the same deliveries, through duplicates and kill -9 (needs only Python)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "onceward needs Python 3.11 or newer: make demo PYTHON=python3.12"; exit 1; }
	@PYTHONPATH=src $(PYTHON) -m onceward.demo

test: lint servers ## Lint, then run the whole test suite on real servers
	@$(SCRATCH) $(BIN)/pytest -q -n $(WORKERS) --dist worksteal $(ARGS)

whole: servers ## The whole test suite, with every case that each run leaves to turns or for its time (twice as long)
	@ONCEWARD_STORES=all ONCEWARD_SOURCES=all ONCEWARD_DYNAMODB=all $(SCRATCH) \
		$(BIN)/pytest -q -n $(WORKERS) --dist worksteal $(ARGS)

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
	@for room in steps domain stores runtime; do \
		echo "coverage: $$($(BIN)/coverage report --include="*/onceward/$$room/*" --format=total) % of $$room"; \
	done

lint: $(READY) ## Check style, types and the direction of imports
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY) ## Rewrite the code in the house style
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

simulate: servers ## Run seeded schedules of the real steps with faults: make simulate SEEDS=2000 STORE=sqlite|postgres|mariadb|all JSON=file
	@$(BIN)/python -m simulation --seeds $(SEEDS) --store $(or $(STORE),all) $(if $(JSON),--json '$(JSON)')

mutants: servers ## Break the code in one way after another: the simulation or a test must catch each (ONLY=part of a name, JSON=file)
	@$(SCRATCH) $(BIN)/python -m mutants $(if $(ONLY),--only '$(ONLY)') $(if $(JSON),--json '$(JSON)')

mutation: servers ## Change code and SQL at random places: a test must notice each (SAMPLE=400, SEED=, ROOM=steps, JSON=file)
	@$(SCRATCH) $(BIN)/python -m mutation --sample $(or $(SAMPLE),400) $(if $(SEED),--seed $(SEED)) $(if $(ROOM),--room $(ROOM)) $(if $(JSON),--json '$(JSON)')

bench: bench-peers ## Measure onceward beside its limits and its peers (QUICK=1: twenty minutes) and write docs/benchmarks.md
	@$(BIN)/python -m bench --scale $(if $(QUICK),quick,full)
	@$(BIN)/python -m bench.mysql --scale $(if $(QUICK),quick,full)
	@for one in redis dynamodb pulsar; do $(BIN)/python -m bench.$$one || exit 1; done
	@$(BIN)/python -m bench.page
	@$(BIN)/python -m proof

bench-mysql: servers ## Measure MariaDB alone and put it into docs/benchmarks.md (five minutes)
	@$(BIN)/python -m bench.mysql --scale $(if $(QUICK),quick,full)
	@$(BIN)/python -m bench.page

bench-peers: servers $(PEERS) ## Install the peers of the benchmark in bench/.venv, test every adapter with them, and run all of it in small
	@ONCEWARD_PEERS=all $(BIN)/pytest -q tests/bench/test_peers.py tests/bench/test_bench.py

bench-fairness: servers ## Measure the fairness scenarios alone and put them into docs/benchmarks.md (two minutes)
	@$(BIN)/python -m bench.again
	@$(BIN)/python -m bench.page

bench-before: servers ## Measure the code before fair claims beside this one and put it into docs/benchmarks.md (ten minutes)
	@$(BIN)/python -m bench.before
	@$(BIN)/python -m bench.page

bench-dashboard: servers ## Measure and record pages of the dashboard beside a million messages, and the cost of the history (five minutes)
	@$(BIN)/python -m bench.dashboard --json proof/figures/dashboard.json

bench-60m: servers ## Measure claims and dedupe beside sixty million finished rows (forty minutes, 40 GB)
	@$(BIN)/python -m bench.sixty

crash: servers ## Every fault at every statement of every scenario, on both stores; make crash SHARD=1/4 JSON=file plays a quarter
	@$(if $(JSON),ONCEWARD_CRASH_JSON='$(JSON)') $(if $(SHARD),ONCEWARD_CRASH_SHARD=$(SHARD)) $(BIN)/python -m tests.crash $(WORKERS)

kills: servers ## kill -9 at every request to DynamoDB and Redis, and every answer of DynamoDB lost (an hour)
	@ONCEWARD_CRASH_SAMPLE=all $(SCRATCH) $(BIN)/pytest -q -n $(WORKERS) \
		tests/dynamodb/test_kills.py tests/dynamodb/test_lost_answers.py tests/redis_store/test_kills.py $(ARGS)

chaos: servers ## Real processes under faults on SQLite and PostgreSQL: make chaos MESSAGES=20000 FAULTS=300 (STORE=mariadb: there alone)
	@$(BIN)/python -m chaos --messages $(MESSAGES) --faults $(FAULTS) $(if $(STORE),--store $(STORE)) $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json $(JSON))

# STORE: postgres, sqlite, mariadb, or all of them, with a third each.
skew: servers ## Two releases on the same tables, an upgrade and a rollback under faults: make skew STORE=all MESSAGES=3000 FAULTS=120
	@$(SCRATCH) $(BIN)/python -m chaos --skew --store $(or $(STORE),all) --messages $(if $(filter command line environment,$(origin MESSAGES)),$(MESSAGES),3000) \
		--faults $(if $(filter command line environment,$(origin FAULTS)),$(FAULTS),120) $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json $(JSON))

faults: servers $(OTHERS) ## The same faults for onceward and for what people use instead, into docs/faults.md (QUICK=1, CONTENDER=celery, MESSAGES=600: writes nothing; SEED=7, AT_ONCE=3)
	@$(SCRATCH) $(BIN)/python -m faults $(if $(QUICK),--quick) $(if $(CONTENDER),--contender '$(CONTENDER)') \
		$(if $(filter command line environment,$(origin MESSAGES)),--messages $(MESSAGES)) $(if $(SEED),--seed $(SEED)) $(if $(AT_ONCE),--at-once $(AT_ONCE)) $(if $(RECORD),--record)

fuzz: $(READY) ## Send many requests that nobody should take to the webhooks: make fuzz REQUESTS=100000 FORGERIES=100000
	@$(BIN)/python -m tests.webhooks --requests $(REQUESTS) --forgeries $(FORGERIES) $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json '$(JSON)')

proof: servers ## Run the long suites, write their figures to docs/proof.md, and refuse records that are stale
	@$(MAKE) --no-print-directory crash JSON=proof/figures/crash.json
	@$(MAKE) --no-print-directory simulate SEEDS=20000 JSON=proof/figures/simulate.json
	@$(MAKE) --no-print-directory mutants JSON=proof/figures/mutants.json
	@$(MAKE) --no-print-directory chaos JSON=proof/figures/chaos.json
	@$(MAKE) --no-print-directory skew JSON=proof/figures/skew.json
	@$(MAKE) --no-print-directory fuzz JSON=proof/figures/fuzz.json
	@$(BIN)/python -m proof
	@$(BIN)/python -m proof --check

check-records: $(READY) ## List every record of a run with its commit and age; fails where one is stale, with the command that makes it anew
	@$(BIN)/python -m proof --check

brokers: servers ## Run the contract of every broker and write the table in docs/brokers.md
	@ONCEWARD_SOURCES=all ONCEWARD_BROKERS_JSON=proof/figures/brokers.json $(BIN)/pytest -q -n $(WORKERS) --dist worksteal \
		tests/sources/test_contract*.py tests/sinks/test_contract.py
	@$(BIN)/python -m proof.brokers

docs: $(READY) $(SITE) ## Make the documentation as a site in build/docs, viewable without network; warnings are errors (LINKS=1: ask every URL)
	@$(BIN)/python -m proof.reference
	@.venv-docs/bin/sphinx-build -q -W --keep-going -b html docs build/docs
	@$(if $(LINKS),.venv-docs/bin/sphinx-build -q -W --keep-going -b linkcheck docs build/links)
	@echo "Open build/docs/index.html"

package: $(READY) ## Build wheel and sdist, install them into empty environments, and import every extra (QUICK=1: two of them)
	@$(BIN)/python -m proof.package $(if $(QUICK),,--every-extra)

pictures: $(READY) ## Draw the README's picture, and record the demo as an animation, in docs/images
	@$(BIN)/python -m proof.pictures
	@$(BIN)/python -m proof.recording

engines: servers ## Play the contract and a load on another server, and record it (QUICK=1: the load alone, without a record): make engines ENGINE=postgres13|postgres14|postgres16|postgres17|postgres18|failover|mysql|mariadb|mariadb11|tidb|galera|group|dynamodb|pulsar|redis|valkey
	@$(SCRATCH) WORKERS=$(WORKERS) $(BIN)/python -m engines $(ENGINE) $(if $(QUICK),--load,--json proof/figures/engine-$(ENGINE).json --page)

hops: $(READY) ## Show which functions a message passes through, and renew that and the tree in CONTRIBUTING.md and docs/architecture.md
	@$(BIN)/python -m tests.hops

sizing: servers ## Measure the bytes that a message takes, and write docs/howto/sizing.md
	@$(SCRATCH) $(BIN)/python -m proof.sizing

soak: $(READY) ## Run a busy inbox for MINUTES (60), with failures and pruning; fails if anything grows (JSON=file)
	@MINUTES=$(or $(MINUTES),60) JSON='$(JSON)' $(BIN)/python -m bench.soak

screenshots: servers ## Make the pictures of docs/images anew: the demo on the dashboard, as the browser tests see it
	@ONCEWARD_SCREENSHOTS=docs/images $(BIN)/pytest -q tests/dashboard/test_demo.py

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
	@find src tests simulation mutants examples bench faults -name __pycache__ -type d -exec rm -rf {} + 2>/dev/null || true

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

$(SITE): docs/requirements.txt
	@$(PYTHON) -m venv .venv-docs >/dev/null || \
		{ $(PYTHON) -m venv --clear --without-pip .venv-docs && \
		  $(PYTHON) -m pip --quiet --python .venv-docs/bin/python install pip; }
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	@touch $@

# Each by itself: one that cannot be installed must not take the others with it. The report names it.
$(PEERS) $(OTHERS): %/.venv/.ready: %/requirements.txt
	@$(PYTHON) -m venv $*/.venv >/dev/null || \
		{ $(PYTHON) -m venv --clear --without-pip $*/.venv && \
		  $(PYTHON) -m pip --quiet --python $*/.venv/bin/python install pip; }
	@grep -v '^#' $*/requirements.txt | while read -r peer; do \
		$*/.venv/bin/python -m pip install --quiet --disable-pip-version-check "$$peer" || echo "not installed: $$peer"; done
	@touch $@
