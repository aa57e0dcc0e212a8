# Everything a newcomer needs: `make demo`, `make test`.  `make help` lists the rest.
PYTHON ?= python3.11
UV := .venv/bin/uv
RUN := .venv/bin/python
STAMP := .stamps

.DEFAULT_GOAL := help

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

setup: $(STAMP)/venv ## Prepare .venv from the lock file, and nothing else

$(STAMP)/venv: requirements.lock pyproject.toml scripts/setup
	@scripts/setup $(PYTHON)
	@mkdir -p $(STAMP) && touch $@

java: ## Install Java 17 where there is none (Spark needs it)
	@scripts/java

$(STAMP)/prepared: $(STAMP)/venv | java
	@.venv/bin/headgate prepare && touch $@

prepare: $(STAMP)/prepared ## Keep the Java classes of Spark in one file, so that Spark starts faster

browser: ## Install Chromium where there is none (the tests open the page in it)
	@scripts/browser

postgres: ## Install PostgreSQL where there is none (the tests write into it)
	@scripts/postgres

# A mirror may not have the connector of this Spark yet; for tests and the demo an older one does.
export HEADGATE_KAFKA_FALLBACK ?= 4.2.0,4.0.0

kafka: setup java ## Fetch the Kafka broker and Spark's connector, once, for tests and the demo
	@$(RUN) -c 'from headgate.connectors.maven import jars; print(len(jars("spark-kafka") + jars("kafka-broker")), "jars")'

demo: prepare ## Run a live shop on Spark: 45 queries, one stream (KAFKA=1: through a broker)
	@.venv/bin/headgate demo $(if $(KAFKA),--kafka)

test: lint prepare browser postgres ## Lint, type-check and run all tests
	$(RUN) -m pytest -n 2 --dist loadgroup

test-deep: prepare browser postgres ## All tests, with three times the examples of every property
	HYPOTHESIS_PROFILE=deep $(RUN) -m pytest -n 2 --dist loadgroup

test-faults: setup java postgres ## Kill drivers, workers and brokers at random moments (about a quarter of an hour)
	$(RUN) -m pytest -m faults -s

SEEDS ?= 1000000

simulate-faults: setup ## Run the engine under simulated faults, SEEDS=1000000 of them, on all cores
	$(RUN) scripts/simulate_faults.py --seeds $(SEEDS)

INPUTS ?= 1000000

fuzz-inputs: setup ## Give Headgate INPUTS=1000000 inputs that nobody would write, on all cores
	$(RUN) scripts/fuzz.py --inputs $(INPUTS)

fuzz: setup java ## Compare 20,000 random expressions with Spark's answers (FUZZ="20000 7 30": seed 7, 30 minutes)
	$(RUN) tests/sql/fuzz_against_spark.py $(FUZZ)

docs: setup ## Build the documentation site into site/ (no network)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet

lint: setup ## ruff and mypy (strict)
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy

format: setup ## Let ruff format the code
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format

bench: setup ## Run the benchmarks
	.venv/bin/headgate bench

picture: setup java ## Run the demo and keep what it prints as docs/demo.svg (on a quiet machine)
	$(RUN) scripts/picture

compare: setup ## Install bytewax and Pathway, which `headgate bench overhead` is then compared with
	$(UV) pip install --python .venv/bin/python --require-hashes -r requirements-compare.lock

lock: setup ## Resolve the dependencies anew and write the lock files
	$(UV) lock --upgrade
	$(UV) export -q --frozen --no-emit-project --no-annotate --no-header --group dev --group docs -o requirements.lock
	$(UV) export -q --frozen --no-emit-project --no-annotate --no-header --only-group compare -o requirements-compare.lock

clean: ## Remove what was built and generated
	rm -rf .venv $(STAMP) .pytest_cache .mypy_cache .ruff_cache .hypothesis data out site

.PHONY: help setup java prepare browser postgres kafka demo test test-deep test-faults simulate-faults fuzz fuzz-inputs lint format bench picture docs compare lock clean
