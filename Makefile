# Every target creates .venv if it is missing. Python 3.11+ and make are the only requirements.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready
EXTRAS := dev,docs,track,fast,export,parquet,formula,deploy,serve,grpc,postgres,otel,oidc
WORKERS ?= 2
DEMO ?= --out runs/demo
SMOKE ?= runs/paper-smoke
# Without bytecode, pytest rewrites every test file in every process: 14 s of CPU time each.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo paper-smoke test-fast test test-docs coverage test-deploy test-package docs notebooks lint format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# torch is installed first and alone, because its pinned version decides which builds of the other packages fit.
# The demo needs no extras: without them a newcomer waits half as long.
$(RUNS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "feddrm needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(READY): $(RUNS)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

demo: $(RUNS) ## Train on the bundled digits and show how much routing gains
	$(BIN)/feddrm demo $(DEMO)

paper-smoke: $(READY) ## Run the paper's commands on the digits in seconds, to check that they work
	$(BIN)/feddrm paper run --grid smoke --device cpu --results $(SMOKE)/results --work $(SMOKE)/work
	$(BIN)/feddrm paper table main --grid smoke --results $(SMOKE)/results
	$(BIN)/feddrm paper figure lambda --grid smoke --results $(SMOKE)/results --out $(SMOKE)/lambda.png
	$(BIN)/feddrm paper page --grid smoke --results $(SMOKE)/results --out $(SMOKE)/results.md

test-fast: $(READY) ## Run the quick tests: no processes, no browser, no fuzzing
	$(BIN)/python -m pytest -m 'not slow' -n $(WORKERS) --dist loadfile

test: $(READY) ## Run the tests of the package, without those of test-docs, test-deploy and test-package
	$(BIN)/python -m pytest -m 'not documented and not deploy and not package' -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-docs: $(READY) ## Run what README, pages, stories and benchmarks show (some minutes)
	$(BIN)/python -m pytest -m documented -n $(WORKERS) --dist loadfile --no-loadscope-reorder

coverage: $(READY) ## Run the tests of make test and test-docs and check how much of the package they reach (twice as long)
	$(BIN)/python -m pytest -m 'not deploy and not package' -n $(WORKERS) --dist loadfile --no-loadscope-reorder --cov --cov-report=

test-deploy: $(READY) ## Run a whole federation on this machine, with sites that fail (some minutes)
	$(BIN)/python -m pytest -m deploy -n 2 --dist loadgroup tests/deploy

test-package: $(READY) ## Build wheel and source distribution, install the wheel into a new environment, run the demo
	$(BIN)/python -m pytest -m package tests/test_release.py

docs: $(READY) ## Run the notebooks, then build the documentation site into site/; a broken link or an orphan page is an error
	$(BIN)/python -m pytest --nbmake --nbmake-timeout=300 -n $(WORKERS) docs/notebooks
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

notebooks: $(READY) ## Run the notebooks of docs/ and keep what they print and draw
	$(BIN)/python packaging/site/run_notebooks.py

lint: $(READY) ## Check style, types and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy packaging/site
	$(BIN)/lint-imports

format: $(READY) ## Rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove .venv and caches
	rm -rf $(VENV) site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
