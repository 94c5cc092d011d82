# What a contributor does, by name. `make dev` once, the rest inside its virtual environment.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(if $(wildcard $(VENV)/bin),$(VENV)/bin/,)

ASV     = $(if $(BIN),$(abspath $(BIN)asv),asv)
THREADS ?= 1
QUICK   ?= yes
MINUTES ?= 10
# Tests of kernels at sizes that plain Python can bear.
PLAIN   = $(addprefix tests/test_,plain_python.py state.py)
PINNED  = NUMBA_NUM_THREADS=$(THREADS) OPENBLAS_NUM_THREADS=$(THREADS) OMP_NUM_THREADS=$(THREADS)

.PHONY: help dev test test-fast test-1t test-soak soak fuzz test-arm64 coverage lint format docs examples bench bench-compare bench-publish clean-cache

help:  ## this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):[^#]*## /\1\t/' | expand -t 14

dev:  ## a virtual environment with everything, and the hooks that run before a commit
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -q -e ".[dev]"
	$(VENV)/bin/pre-commit install

test:  ## everything that a change must pass
	$(BIN)python -m pytest

test-fast:  ## under a minute once kernels are compiled: for the edit loop
	$(BIN)python -m pytest -m "not long and not soak" -x

test-1t:  ## one thread: kernels take their serial twins, which must give the same bits
	NUMBA_NUM_THREADS=1 $(BIN)python -m pytest

test-soak:  ## the test suite with thousands of random cases instead of a hundred: for a night
	HYPOTHESIS_PROFILE=soak $(BIN)python -m pytest -m ""

soak:  ## ten minutes of everything at once on several threads: constant memory, the hash of a cold run (MINUTES=10)
	PYTHONPATH=.:tests $(BIN)python tests/soak.py --minutes $(MINUTES)

fuzz:  ## hostile files for MINUTES=10: prints counts for each kind, keeps what fails in fuzz_failures/
	PYTHONPATH=. $(BIN)python tests/fuzzing.py --minutes $(MINUTES) --save fuzz_failures

test-arm64:  ## the same bits on 64-bit Arm, emulated: golden cases and a hash of random ones (Debian only)
	PYTHON=$(BIN)python tests/arm64.sh test

coverage:  ## lines of the package that tests run, those of kernels as plain Python; under 95 per cent is an error
	rm -f .coverage .coverage.*
	NUMBA_DISABLE_JIT=1 HYPOTHESIS_PROFILE=plain $(BIN)python -m coverage run -m pytest -q $(PLAIN)
	cache=$$(mktemp -d) && trap 'rm -rf "$$cache"' EXIT && \
	  NUMBA_CACHE_DIR=$$cache HYPOTHESIS_PROFILE=plain $(BIN)python -m coverage run -m pytest -q -m "not long and not soak"
	$(BIN)python -m coverage combine -q
	$(BIN)python -m coverage report

lint:  ## style, spelling and the form of docstrings
	$(BIN)ruff check .
	$(BIN)ruff format --check .
	$(BIN)codespell .
	$(BIN)python -m numpydoc.hooks.validate_docstrings mojolearn/*.py

format:  ## let ruff put the code in order
	$(BIN)ruff check --fix .
	$(BIN)ruff format .

docs:  ## the pages under docs/ as a site in docs/_build; warnings are errors (wants the docs extra)
	$(BIN)python -m sphinx -W -b html docs docs/_build

examples:  ## every example runs alone and asserts what it claims
	@for example in examples/*.py; do [ -e "$$example" ] || continue; echo "$$example"; MPLBACKEND=agg $(BIN)python "$$example" || exit 1; done

bench:  ## one sample of every benchmark, this environment (ONLY=name, THREADS=2; QUICK= measures and records)
	cd asv_benchmarks && $(ASV) machine --yes >/dev/null && $(PINNED) $(ASV) run -E existing --show-stderr \
	  $(if $(QUICK),--quick --dry-run,--set-commit-hash "$$(git rev-parse HEAD)") $(if $(ONLY),--bench '$(ONLY)')

bench-compare:  ## main against the commit at HEAD, each in a fresh environment (ONLY=name)
	cd asv_benchmarks && $(ASV) machine --yes >/dev/null && \
	  $(ASV) continuous main HEAD --factor 1.1 --split $(if $(ONLY),--bench '$(ONLY)')

bench-publish:  ## what was recorded as pages with graphs, under asv_benchmarks/.asv/html
	cd asv_benchmarks && $(ASV) publish

clean-cache:  ## forget compiled kernels and leftovers of builds (never needed after an edit: the cache knows its sources)
	rm -rf "$${NUMBA_CACHE_DIR:-$${XDG_CACHE_HOME:-$$HOME/.cache}}/mojolearn" build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
