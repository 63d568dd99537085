# make demo   a traced example server under load: demo/report.html, demo/summary.json and the table
# make test   lint, types and every test
# make test-engines   the tests against a real vLLM on the CPU (installs it: 3.5 GB)
#
# Both set up .venv by themselves. Needs python3 (3.10 or later) with venv; a C compiler and
# Python's headers for the native parts. PYTHON=… picks the interpreter.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
SOURCES = pyproject.toml setup.py $(wildcard probes/native/*.c probes/native/*.h)
CHECKED = rca_llm probes exporters examples tests benchmarks $(wildcard docs/*.py) setup.py
LOAD ?= --requests 24

ENGINES ?= .venv-engines

.PHONY: demo test test-engines lint types pytest build docs bench clean help

help:
	@sed -n 's/^# //p' Makefile | head -3

# --- Environment: a stamp for each set of packages ---

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python $(SOURCES)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-dev: $(BIN)/python $(SOURCES)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: $(BIN)/python $(SOURCES)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

# --- What people run ---

demo: $(VENV)/.installed
	@mkdir -p demo
	$(BIN)/rca-llm trace --force -o demo/run.rca -- $(BIN)/python examples/demo.py $(LOAD)
	$(BIN)/rca-llm report demo/run.rca --force -o demo/report.html --json demo/summary.json
	@echo "demo/report.html  demo/summary.json"

test: lint types pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)

types: $(VENV)/.installed-dev
	$(BIN)/mypy
	$(BIN)/pyright --project . --pythonpath $(BIN)/python

pytest: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

# Skipped, with the reason, where vLLM cannot be had.
test-engines: $(VENV)/.installed-dev
	@python=$$(sh tests/engines/vllm.sh $(PYTHON) $(abspath $(ENGINES))) || \
	    { echo "tests against a real vLLM skipped: $$python"; exit 0; }; \
	set -x; RCA_LLM_VLLM_PYTHON=$$python $(BIN)/python -m pytest -rP tests/engines

# --- What maintainers run ---

build: $(VENV)/.installed-dev
	rm -rf dist
	$(BIN)/python -m build

docs: $(VENV)/.installed-docs
	$(BIN)/python docs/build.py build/docs

bench: $(VENV)/.installed-dev
	for script in startup analysis probes report; do \
	    test ! -f benchmarks/$$script.py || $(BIN)/python benchmarks/$$script.py || exit 1; \
	done

clean:
	rm -rf build dist demo *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	rm -f probes/native/*.so
