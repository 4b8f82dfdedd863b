# `make demo` and `make test` do all their set-up in a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV_READY := $(VENV)/.ready-dev

.PHONY: demo quick test check docs bench format clean help

help:            ## This list.
	@grep -E '^[a-z]+: .*##|^[a-z]+:  +##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

demo: $(READY)   ## The demo study: one tiny model, three tasks, every method, planted layers, the report.
	$(BIN)/memloc init demo
	$(BIN)/memloc run demo

quick: $(DEV_READY)  ## Tests that catch most mistakes.
	$(BIN)/python -m pytest -n 2 --dist worksteal --quick tests

test: $(DEV_READY)  ## All tests.
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(DEV_READY)  ## Format, lint, types, wheel, documentation, tests: what CI runs.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	.ci/wheel
	$(MAKE) docs
	$(MAKE) test

docs: $(DEV_READY)  ## The documentation: docs/_build/html/index.html; warnings are errors.
	$(BIN)/python -m sphinx --builder html --fresh-env --fail-on-warning --quiet docs docs/_build/html

bench: $(DEV_READY)  ## Ratios against the plain ways, side by side; writes benchmarks/results.json.
	$(BIN)/python -m benchmarks

format: $(DEV_READY)  ## Put the code into shape.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:           ## Remove the environment and what demo made.
	rm -rf $(VENV) demo docs/_build

# torch first and by its exact version: that gives the build for this machine.
$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV): some minutes the first time, as torch and transformers are large."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(shell grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(DEV_READY): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
