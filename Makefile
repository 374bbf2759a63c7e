# make repro     the main job: why the two-shot kernel fails at small gates and passes its self-test
# make test      the tests
# make check     linters and types        make format     formatters
# make notebooks pair, strip and run the notebooks
# make clean     remove what these made
#
# Each target makes its own virtual environment on first use and skips pip afterwards: the stamp files
# in $(VENV) are newer than pyproject.toml until that changes.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

# A bare `torch` lets pip take the newest release, which on Linux can be a GPU build of several GB. No test
# needs a GPU, so the one release that the tests ran with goes in first, unless the environment has a torch.
# To choose your own, for instance a CPU-only wheel: make test TORCH=path/to/wheel
TORCH ?= torch==2.13.0

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --editable

.PHONY: repro test check format notebooks clean

repro: $(VENV)/.installed-base
	@$(BIN)/lab repro $(ARGS)

# With the notebooks, which a bare `pytest` leaves out.
PYTEST := $(BIN)/python -m pytest -p nbmake --nbmake -q

# Side by side, one process a core and 8 at most (each takes about 700 MiB). What they share is compiled before they
# start, so that no two of them compile the same. One process: make test JOBS=0. Timings: make test ARGS=--durations=30
JOBS ?= logical

test: $(VENV)/.installed-test
	@$(BIN)/python -m lab.sim.warmup
	$(PYTEST) -x -n $(JOBS) --maxprocesses 8 --dist loadgroup -p no:benchmark $(ARGS)

# mypy holds the parts that are plain Python; compiled code resists it.
TYPED := lab/__init__.py lab/errors.py lab/protocol
DEVICE_CODE := $(shell find lab/kernels -name "*.hip" -o -name "*.hpp")

check: $(VENV)/.installed-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(TYPED)
ifneq ($(DEVICE_CODE),)
	$(BIN)/clang-format --dry-run --Werror $(DEVICE_CODE)
endif

format: $(VENV)/.installed-check
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
ifneq ($(DEVICE_CODE),)
	$(BIN)/clang-format -i $(DEVICE_CODE)
endif

# The .py half is the source; the .ipynb half is committed without outputs.
NOTEBOOKS := $(wildcard notebooks/*.py)

notebooks: $(VENV)/.installed-notebooks
	$(BIN)/jupytext --sync $(NOTEBOOKS)
	$(BIN)/jupyter nbconvert --clear-output --inplace --log-level WARN $(NOTEBOOKS:.py=.ipynb)
	$(PYTEST) notebooks $(ARGS)

clean:
	rm -rf $(VENV) .venv-ci out build .pytest_cache .ruff_cache .mypy_cache .hypothesis .benchmarks *.egg-info
	find lab notebooks experiments -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# ---- the virtual environment

$(VENV)/pyvenv.cfg:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "lab: there is no '$(PYTHON)' on the PATH; install Python 3.11 or newer, or say: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "lab: '$(PYTHON)' is $$($(PYTHON) --version 2>&1); the lab needs Python 3.11 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "lab: '$(PYTHON) -m venv' failed (see above; Debian and Ubuntu keep it in the package python3-venv)" >&2; exit 1; }

$(VENV)/.installed-base: pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "lab: installing into $(VENV); this happens once" >&2
	@$(INSTALL) .
	@touch $@

# One pip call resolves torch and the extra together.
$(VENV)/.installed-test: pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "lab: installing what the tests need into $(VENV), torch included; this happens once" >&2
	@$(INSTALL) '.[test]' $$($(PIP) show --quiet torch 2>/dev/null || echo '$(TORCH)')
	@touch $(VENV)/.installed-base $@

$(VENV)/.installed-check: pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "lab: installing the linters into $(VENV); this happens once" >&2
	@$(INSTALL) '.[check]'
	@touch $(VENV)/.installed-base $@

$(VENV)/.installed-notebooks: pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "lab: installing JupyterLab and the tests' needs into $(VENV); this happens once" >&2
	@$(INSTALL) '.[notebooks,test]' $$($(PIP) show --quiet torch 2>/dev/null || echo '$(TORCH)')
	@touch $(VENV)/.installed-base $(VENV)/.installed-test $@
