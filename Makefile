# make demo: set up and train a small Llama on real text.   make test: set up and run every check.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test stress fuzz test-slurm lint docs goldens bench-peers clean

demo: .venv/installed
	$(BIN)/rampcli pretrain --factory llama3_tiny
	$(BIN)/rampcli generate runs/llama3_tiny --prompt 'def '

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest --durations=15

# Kills a run's processes a hundred times at random instants; SEED=1 takes others.
stress: .venv/installed-dev
	OMP_NUM_THREADS=1 KILLS=$${KILLS:-100} $(BIN)/pytest -n 0 -s tests/distributed/test_random_kills.py

# Damages files and command lines at random, for an hour; MINUTES= and SEED= say otherwise.
fuzz: .venv/installed-dev
	PYTHONPATH=tests $(BIN)/python -P -m hostile.fuzz

SLURM := slurm-wlm munge openmpi-bin
APT := DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends

# Installs Slurm where it is not there, as root on Debian or Ubuntu, and tests with clusters of its own on this machine.
test-slurm: .venv/installed-dev
	type slurmctld slurmd munged mpirun >/dev/null 2>&1 || $(APT) $(SLURM) || { apt-get update -qq && $(APT) $(SLURM); }
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/slurm

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

# What tests/benchmarks/bench_step.py compares a step with. The last two want other releases of what transformers and torch want.
bench-peers: .venv/installed-dev
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,bench]'
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps litgpt torchtitan

goldens: .venv/installed-dev
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -P -m numerics.goldens

clean:
	rm -rf .venv dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .fuzz .import_linter_cache
