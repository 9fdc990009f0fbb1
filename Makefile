# Everything runs in a virtual environment of its own, .venv; `make clean` removes it.

PYTHON ?= python3
BIN    := .venv/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# How many processes run the tests; 0, one after the other, if they share a server that is not their own.
WORKERS ?= logical

# What part of the torture, of which backends: make torture PARTS="histories hostile" TORTURE="--backend redis --seed 7"
PARTS   ?=
TORTURE ?=

.PHONY: demo test check bench torture docs format clean

demo: .venv/.harel
	$(BIN)/harel demo

test: .venv/.develop
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

check: .venv/.develop docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/.develop
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

bench: .venv/.develop
	$(BIN)/python -m benchmarks

torture: .venv/.develop
	$(BIN)/python -m torture $(PARTS) $(TORTURE)

format: .venv/.develop
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv docs/_build build dist

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "harel needs Python 3.11 or later; name one with: make PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "This Python cannot make a virtual environment; on Debian install python3-venv, then try again."; exit 2; }
	$(PYTHON) -m venv .venv

.venv/.harel: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable .
	@touch $@

.venv/.develop: .venv/.harel requirements-dev.txt
	$(PIP) --editable '.[all]' --requirement requirements-dev.txt
	@touch $@
