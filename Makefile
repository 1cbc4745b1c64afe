# Everything a developer or CI does; each target makes the virtual environment once.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

# The stamps say: installed from these two files. `base` is what `phoenix demo` needs, `dev` adds the tools.
BASE := $(VENV)/.base
DEV := $(VENV)/.dev

.PHONY: help demo serve test check docs nightly bench bench-peers gpu soak clean
.DEFAULT_GOAL := help
.NOTPARALLEL:

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/'

$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "phoenix needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + "; set PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (the first time downloads about 250 MB)"
	$(PIP) -e .
	@touch $@

$(DEV): $(BASE)
	$(PIP) -e '.[dev]'
	@touch $@

demo: $(BASE)  ## train, kill a rank, freeze another, watch both heal (about three minutes)
	$(BIN)/phoenix demo $(ARGS)

serve: $(BASE)  ## the service and its pages on 127.0.0.1
	$(BIN)/phoenix serve $(ARGS)

test: $(DEV)  ## all tests but the soak ones
	$(BIN)/python -m pytest $(ARGS)

check: $(DEV)  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict

docs: $(DEV)  ## write docs/reference/ from the code, and the pictures of the pages
	$(BIN)/python -m docs.generate
	$(BIN)/python -m docs.screenshots

nightly: $(BASE)  ## every scenario once, the table into benchmarks/results/nightly.md (at most 45 minutes)
	$(BIN)/phoenix nightly scenarios/nightly.yaml --markdown benchmarks/results/nightly.md $(ARGS)

bench: $(BASE)  ## recovery time, failure-free overhead, the protocol at scale, goodput, into benchmarks/results/
	$(BIN)/python -m benchmarks.recovery
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.goodput

bench-peers: $(BASE)  ## PHOENIX beside torchrun, torchft and NVRx, into benchmarks/results/ (75 minutes; ARGS=--help)
	$(BIN)/python -m benchmarks.peers $(ARGS)

gpu: $(DEV)  ## tests and measurements that need a CUDA device (and a CUDA build of torch)
	$(BIN)/python -m pytest -m gpu $(ARGS)
	$(BIN)/python -m benchmarks.gpu_check --out benchmarks/results

soak: $(DEV)  ## the tests that take minutes
	$(BIN)/python -m pytest -m soak --timeout=1800 $(ARGS)

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
