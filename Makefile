# Two commands do all the set-up from a clone: `make demo` and `make test`.
#
#   .venv/.made ──► .venv/.train ──► demo          a stamp is a file in .venv that says "done"; pip runs again
#        └────────► .venv/.dev ────► test, lint    only when pyproject.toml or constraints.txt is newer than it

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt
# One worker more than cores, 5 at most: a test of several ranks waits for them for a tenth of its time.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min((os.cpu_count() or 1) + 1, 5))')
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 30
# Else every process that a test starts compiles the package anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test suite test-all quick base parity gpu-kit site lint format clean

help:  ## Show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.train  ## Install what training needs, then run the main job end to end (minutes)
	$(BIN)/scalewright demo

TESTS := not slow and not parity
SAVE ?=
test: $(VENV)/.dev  ## Install what the tests need, check style and types, run the tests (SAVE=--save-durations)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# types are checked beside the tests, and their errors come last
	$(BIN)/mypy > $(VENV)/types 2>&1 & types=$$!; trap 'kill $$types 2>/dev/null' EXIT INT TERM; $(PYTEST) -p tests.times $(SAVE) -m "$(TESTS)" ; tests=$$?; wait $$types || tests=$$?; cat $(VENV)/types; exit $$tests

suite: $(VENV)/.dev  ## The tests alone (style and types are checked with constraints.txt's newest packages)
	$(PYTEST) -p tests.times -m "$(TESTS)"

test-all: TESTS := not parity
test-all: test  ## The same with the long tests

REV ?=
quick: $(VENV)/.dev  ## Run the tests that a change since REV (default: main, or HEAD~1 on it) can touch, for 100 s
	PYTHONPATH=tests $(PYTEST) -m "not slow and not parity" -p quick --within 100 $$($(BIN)/python tests/quick.py $(REV))

base:  ## Install the base package alone, without torch, and try what works with it
	$(PYTHON) -m venv $(VENV)-base
	$(VENV)-base/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e .
	PATH="$(abspath $(VENV)-base/bin):$$PATH" bash .ci/base

parity: $(VENV)/.dev  ## Compare every layout with one device, and checkpoints between layouts (two hours)
	$(BIN)/python -m pytest tests/parity -m "parity or not parity" --save-parity comparisons/results

OUT ?= gpu-kit
PYTHON_TAG ?= cp312
gpu-kit: $(VENV)/.train  ## Make a folder (OUT=DIR) that checks a GPU machine without a network (PYTHON_TAG=cp312)
	$(BIN)/python comparisons/gpu_kit.py --out $(OUT) --python-tag $(PYTHON_TAG)

site: $(VENV)-site/.made  ## Build the site of docs/ into build/site; a warning or a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(VENV)-site/bin/python -m mkdocs build

lint: $(VENV)/.dev  ## Check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev  ## Fix style and formatting in place
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove the environment and the tools' caches (not runs/ and data/)
	rm -rf $(VENV) $(VENV)-base $(VENV)-site build .mypy_cache .ruff_cache .pytest_cache

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed: make PYTHON=python3.11 ..." if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.train: $(VENV)/.made pyproject.toml constraints.txt
	@echo "installing scalewright with what training needs (half a minute or more, once)"
	$(PIP) -e '.[train]'
	@touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml constraints.txt
	@echo "installing scalewright with what the tests need (a few minutes, once)"
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.train

$(VENV)-site/.made: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-site
	$(VENV)-site/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt '.[docs]'
	@touch $@
