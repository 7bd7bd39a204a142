# Each target makes what it needs: on a fresh machine `make demo` and `make test` create .venv with every dependency.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?= 2
TORCH  ?= torch==2.13.0

.PHONY: all demo test test-slow test-newest-jax lint types check bench tables docs tour coverage clean

all: check

# The package itself, for use.
$(VENV)/.ready-demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e .
	touch $@

# The package with everything the tests need. PyTorch is pinned: a plain `torch` may be gigabytes of another build.
$(VENV)/.ready-test: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e '.[test,bench,programs]' $(TORCH)
	touch $(VENV)/.ready-demo $@

demo: $(VENV)/.ready-demo
	$(BIN)/onelaunch demo

test: $(VENV)/.ready-test
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m 'not slow' $(PYTEST_ARGS)

# Every row under every plan, more random programs: an hour or more.
test-slow: $(VENV)/.ready-test
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m slow $(PYTEST_ARGS)

# The tests that need no PyTorch, on Python 3.12 with the newest JAX, in a second environment.
test-newest-jax:
	./.ci/newest-jax

lint: $(VENV)/.ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready-test
	$(BIN)/mypy

# What CI runs.
check:
	./.ci/run

bench: $(VENV)/.ready-test
	$(BIN)/python bench/run.py
	$(BIN)/python bench/table.py

tables: $(VENV)/.ready-test
	$(BIN)/python bench/table.py --check

coverage: $(VENV)/.ready-test
	$(BIN)/python bench/programs.py

docs: tour tables

tour: $(VENV)/.ready-test
	$(BIN)/python docs/make_tour.py

clean:
	rm -rf .venv .venv-newest .pytest_cache .mypy_cache .ruff_cache build dist
