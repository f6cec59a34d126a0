# Every target sets itself up. `make demo` and `make test` work from a bare clone.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_JOBS ?= 2

.PHONY: setup demo test test-slow test-cluster check bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $(STAMP)

demo: $(STAMP)
	mkdir -p out
	$(BIN)/sanawm refine --config tiny --output out/demo.mp4 --preview out/demo.png --overwrite

test: $(STAMP)
	$(BIN)/python -m pytest -n $(PYTEST_JOBS)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m "slow and not gpu"

# The part of the slow suite that starts a Ray cluster, by itself.
test-cluster: $(STAMP)
	$(BIN)/python -m pytest -m cluster

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy sanawm cli

bench: $(STAMP)
	$(BIN)/python -m tests.bench

clean:
	rm -rf $(VENV) build out *.egg-info
