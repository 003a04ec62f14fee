# Everything a person or a machine does here. Set-up happens by itself, in .venv, once.
.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

VENV := .venv
BIN := $(VENV)/bin
# The first Python that is new enough.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && { echo $$p; break; }; done)

# torch comes first and exactly pinned: whatever else depends on it then takes this one and no other build.
TORCH ?= torch==$(shell sed -n 's/^torch==//p' constraints.txt)

# The first packages of a new .venv instead of those that its Python brings: make check-install takes the oldest.
SEED ?=

INSTALL := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq install
PIP := $(INSTALL) -c constraints.txt
# Workers fill the cores: a second thread of linear algebra only waits for its turn, and burns a core meanwhile.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q --dist worksteal
WORKERS := $(shell expr $$(nproc) + 2)# two more than cores: tests of networks wait
COVERAGE ?=# options of pytest-cov, which nightly gives
unexport PYTHONDONTWRITEBYTECODE # tests start hundreds of processes, and each would compile the package again
SOURCES := $(wildcard conftest.py) $(foreach d,src tests examples evaluation benchmarks tools,$(if $(wildcard $(d)/*.py $(d)/*/*.py),$(d)))

.PHONY: help demo test check rules types check-install docs wheel nightly test-all bench evaluation fmt clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## train on New York's flights of 2013: sixteen airlines, three other owners, nothing pooled
	@$(BIN)/tablepuppet demo $(if $(FLIGHTS),--flights $(FLIGHTS))

# mypy takes one core for a minute; the tests begin meanwhile.
test: rules ## check, doctests, quick tests and examples (less than eight minutes on two cores)
	@echo "mypy: checking types"; $(BIN)/mypy $(SOURCES) & types=$$!; \
		$(PYTEST) -n $(WORKERS) $(COVERAGE) -m "not slow and not root and not network" && passed=1 || passed=; \
		wait $$types && test -n "$$passed"

check: rules types ## format, lint, types and import rules

rules: $(VENV)/.dev
	@$(BIN)/ruff format --check --quiet $(SOURCES) || { echo "Some files are not formatted: run make fmt."; exit 1; }
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/python tools/check_shape.py

types: $(VENV)/.dev
	@echo "mypy: checking types"
	@$(BIN)/mypy $(SOURCES)

check-install: ## make demo as on a new machine: fresh clone of HEAD, oldest pip, no cache, nothing built
	@tools/check_install.sh "$(PYTHON)" $(FLIGHTS)

test-all: check ## make test and the slow tests, with coverage
	@$(PYTEST) -n $(WORKERS) -m "not root and not network" --cov --cov-report=term

docs: $(VENV)/.dev ## check prose, spelling and generated tables, and build the site into build/site; a broken link is an error
	@$(BIN)/python tools/check_prose.py
	@$(BIN)/python -m tools.check_spelling
	@$(BIN)/python -m tools.reference_in_pages --check
	@$(BIN)/python -m tools.figures_in_pages --check
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "Open build/site/index.html; with search: python -m http.server -d build/site"

wheel: $(VENV)/.dev ## build dist/, install the wheel into an environment of its own and use it there
	@tools/check_wheel.sh "$(PYTHON)"

nightly: $(VENV)/.dev ## everything, part by part, and how long each took: make test, slow tests, those that need root, docs, wheel, an hour of random SQL
	@tools/nightly.sh

POOLED = --algorithm newton --algorithm sklearn-newton
bench: $(VENV)/.dev ## measure all of docs/performance.md's tables (15 minutes, 13 GB; SMALL=1: ten, 4 GB); DATA=folder of all data adds MovieLens-1M
	@test -z "$(DATA)" || $(BIN)/python -m benchmarks movielens --data "$(DATA)" $(POOLED) --algorithm sklearn --out docs/figures/bench-movielens.json
	@$(BIN)/python -m benchmarks star --rows 5000000 $(POOLED) --out docs/figures/bench-star.json
	@$(BIN)/python -m benchmarks star --processes --rows 5000000 --algorithm newton --out docs/figures/bench-star-processes.json
	@$(BIN)/python -m benchmarks tpch-0.1 $(POOLED) --algorithm sklearn --algorithm sgd --out docs/figures/bench-tpch-0.1.json
	@$(BIN)/python -m benchmarks tpch-1 $(POOLED) --out docs/figures/bench-tpch-1.json
	@test -n "$(SMALL)" || $(BIN)/python -m benchmarks tpch-10 --algorithm newton --out docs/figures/bench-tpch-10.json
	@$(BIN)/python -m benchmarks chain many $(POOLED) --algorithm sgd --algorithm admm --out docs/figures/bench-joins.json
	@$(BIN)/python -m benchmarks.fan_out --out docs/figures/fan-out.json
	@$(BIN)/python -m benchmarks --network 10 --out docs/figures/bench-network.json
	@$(BIN)/python -m benchmarks --torch --out docs/figures/bench-torch.json
	@$(BIN)/python -m tools.figures_in_pages

evaluation: $(VENV)/.dev ## re-run the paper's evaluation: make evaluation DATA=folder (half an hour; RESUME=1: go on with an interrupted one)
	@test -n "$(DATA)" || { echo "Name the folder of the data: make evaluation DATA=folder (docs/evaluation.md)"; exit 2; }
	@$(BIN)/python -m evaluation all --data "$(DATA)" $(if $(RESUME),--resume)
	@cp evaluation-results/evaluation-*.json evaluation-results/figures/convergence*.svg evaluation-results/figures/time-*.svg docs/figures/
	@$(BIN)/python -m tools.figures_in_pages

fmt: $(VENV)/.dev ## format the code and fix what can be fixed
	@$(BIN)/ruff format $(SOURCES)
	@$(BIN)/ruff check --fix $(SOURCES)

clean: ## remove .venv and everything else that make and the tools wrote
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.* dist
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# -- set-up --------------------------------------------------------------------------------
# New constraints build .venv afresh; a changed pyproject.toml only installs again.

$(VENV)/.created: constraints.txt
	@test -n "$(PYTHON)" || { echo "TablePuppet needs Python 3.11 or newer, and there is none on the PATH."; \
		echo "Install one, or name it: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version)."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(if $(SEED),$(INSTALL) $(SEED))
	@$(PIP) hatchling editables
	@touch $@

$(VENV)/.demo: $(VENV)/.created pyproject.toml
	@echo "Installing TablePuppet into $(VENV) (less than a minute, once)."
	@$(PIP) --no-build-isolation -e .
	@touch $@

$(VENV)/.torch: $(VENV)/.created
	@echo "Installing $(TORCH) into $(VENV) (about a minute, once)."
	@$(PIP) '$(TORCH)' || { echo "The tests need $(TORCH), and pip found none for $$($(BIN)/python --version)."; \
		echo "Take another Python (make clean, then make test PYTHON=python3.11) or another torch (make test TORCH=torch)."; \
		echo "make demo needs no torch."; exit 1; }
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	@echo "Installing TablePuppet and its developers' tools into $(VENV) (a few minutes, once)."
	@$(PIP) --no-build-isolation -e '.[dev]'
	@touch $(VENV)/.demo $@
