# make demo: set up and train a small Llama on real text.   make test: set up and run every check.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint docs goldens clean

demo: .venv/installed
	$(BIN)/rampcli pretrain --factory llama3_tiny
	$(BIN)/rampcli generate runs/llama3_tiny --prompt 'def '

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest

lint: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/installed-dev
	$(BIN)/python docs/generate.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

.venv/installed-dev: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps megatron-core
	touch $@ .venv/installed

goldens: .venv/installed-dev
	$(BIN)/python tests/numerics/goldens.py

clean:
	rm -rf .venv dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
