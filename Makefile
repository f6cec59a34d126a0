# Every target sets itself up. `make demo` and `make test` work from a bare clone.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_JOBS ?= 2

.PHONY: setup demo tiny-model test test-slow test-cluster check bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $(STAMP)

# A clip, its contact sheet, and stage 1's clean latents (left) beside the refined ones (right).
demo: $(STAMP)
	mkdir -p out
	$(BIN)/sanawm refine --config tiny --output out/demo.mp4 --preview out/demo.png \
		--save-stage1 out/demo-clean.safetensors --overwrite
	$(BIN)/sanawm decode --config tiny out/demo-clean.safetensors --output out/demo-clean.mp4 \
		--drop-first-frame --overwrite
	$(BIN)/sanawm compare out/demo-clean.mp4 out/demo.mp4 \
		--side-by-side out/demo-side-by-side.mp4 --overwrite
	@echo
	@echo "the clip               out/demo.mp4"
	@echo "its contact sheet      out/demo.png"
	@echo "clean beside refined   out/demo-side-by-side.mp4"

# Train the models of the tiny preset anew: under 5 hours on two cores. Stop it whenever you like;
# run again it goes on. The result lies in out/tiny-model/export.
tiny-model: $(STAMP)
	nice -n 19 $(BIN)/python -m configs.tiny.make.train --work out/tiny-model

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
