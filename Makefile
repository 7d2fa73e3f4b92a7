# Seedbed. `make report` and `make test` set up everything they need in .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
# Another build of torch, say for a certain GPU: make setup TORCH="torch==2.13.0 --index-url URL-OF-THE-BUILD"
TORCH ?= $(shell grep '^torch==' requirements.lock)
export DVC_NO_ANALYTICS := 1
export DO_NOT_TRACK := 1
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PATH := $(BIN):$(PATH)

.PHONY: setup report test lint types ui lock clean

report: setup  ## run what the default experiment lacks, then build the report and print its path
	@python -m flows sweep

test: setup lint types  ## linter, formatter, strict type checker and all tests
	@python -m pytest

ui: setup  ## Prefect server, worker and the served report, until Ctrl-C
	@python -m flows ui

setup: $(VENV)/.installed

lint: setup
	@ruff check .
	@ruff format --check .

types: setup
	@mypy

$(VENV)/.installed: requirements.lock pyproject.toml
	@test -x $(VENV)/bin/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Seedbed needs Python 3.11 or newer; set PYTHON=…")'
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing the locked packages into $(VENV) (once, some minutes)…"
	@grep -v '^torch==' requirements.lock > $(VENV)/requirements.txt
	@$(BIN)/python -m pip install --quiet -c $(VENV)/requirements.txt $(TORCH)
	@$(BIN)/python -m pip install --quiet --no-deps -r $(VENV)/requirements.txt
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m pip check
	@touch $@

lock: setup  ## write the versions of the environment into requirements.lock
	@$(BIN)/python -m pip freeze --all --exclude-editable --exclude pip | sed 's/+[a-z0-9]*$$//' > requirements.lock

clean:  ## remove what runs leave, but neither results nor the DVC cache
	rm -rf .seedbed .pytest_cache .mypy_cache .ruff_cache
