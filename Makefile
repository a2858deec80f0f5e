# make demo: install rampcli and train a small Llama on real text.
# make test: install the development tools and run every check.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test rehearse-gpu stress fuzz test-slurm lint docs docs-site goldens bench-peers clean

demo: .venv/installed
	$(BIN)/rampcli pretrain --factory llama3_tiny
	$(BIN)/rampcli generate runs/llama3_tiny --prompt 'def '

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest --durations=15

# Train on pretended CUDA devices: a library for the torch of constraints.txt, built for CPUs.
rehearse-gpu: .venv/installed-dev
	PYTHONPATH=tests $(BIN)/python -P -m gpu_rehearsal.build
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/gpu_rehearsal

# Run the tests that take long: kill the processes of a run KILLS times (default 100) at random
# instants (SEED=1 draws others), and run the benchmark for GPUs with a tiny model.
stress: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 0 -s tests/stress

# Damage files and command lines at random for MINUTES (default 60). SEED=1 draws other damage.
fuzz: .venv/installed-dev
	PYTHONPATH=tests $(BIN)/python -P -m hostile.fuzz

SLURM := slurm-wlm munge openmpi-bin
APT := DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends

# Install Slurm if it is missing (as root on Debian or Ubuntu), then run its tests on clusters of
# their own on this machine.
test-slurm: .venv/installed-dev
	type slurmctld slurmd munged mpirun >/dev/null 2>&1 \
		|| $(APT) $(SLURM) || { apt-get update -qq && $(APT) $(SLURM); }
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/slurm

# The linters, formatter, type checker and import rules. Nothing is changed.
lint: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Write the generated pages and pictures of docs/.
docs: .venv/installed-dev
	$(BIN)/python -P -m docs.generate

# Build the documentation as a site in site/. A broken link or anchor is an error.
docs-site: .venv/installed-dev
	$(BIN)/sphinx-build -q -n -W --keep-going -E -d .venv/doctrees -c docs . site
	@echo "wrote site/index.html"

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing rampcli and the packages it needs into .venv, which takes a minute or more."
	@echo "The largest download is PyTorch: about 200 MB for CPUs, or several GB with CUDA."
	$(PIP) --editable .
	touch $@

.venv/installed-dev: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing rampcli and its development tools into .venv, which takes a few minutes."
	@echo "The largest download is PyTorch: about 200 MB for CPUs, or several GB with CUDA."
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps megatron-core
	touch $@ .venv/installed

# Install what tests/benchmarks/bench_step.py compares a step with. litgpt and torchtitan go without
# their dependencies: they ask for other releases of transformers and torch.
bench-peers: .venv/installed-dev
	$(PIP) --editable '.[dev,bench]'
	$(PIP) --no-deps litgpt torchtitan

# Write the golden losses of tests/numerics again, after a change of computation.
goldens: .venv/installed-dev
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -P -m numerics.goldens
	$(BIN)/python tests/recipes/test_goldens.py

clean:
	rm -rf .venv dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis .fuzz .import_linter_cache
