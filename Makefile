# Everything starts from a machine with Python 3.11 or newer and make; `make venv` sets up the rest, as do all others that need it.
PYTHON ?= python3
# Two test processes with one thread each: faster than one process with two threads, and the timings are steadier.
JOBS ?= 2

BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help venv demo test quick lint mutants fuzz bench docs clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# torch goes first and by its exact version, so that the resolver never looks at another build of it.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "surebound needs Python 3.11 or newer, got " + sys.version.split()[0])'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev,ray]'
	@touch $@

venv: $(INSTALLED) ## set up .venv, with the package installed in place

demo: $(INSTALLED) ## train on bundled digits, certify, and write a report
	$(BIN)/surebound demo --out demo

test: lint ## check the style, then run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --durations=10

quick: lint ## check the style, then run the tests that are not marked slow, under two minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) -m 'not slow'

lint: $(INSTALLED) ## check style, types and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

mutants: $(INSTALLED) ## put bugs into the code and see that tests notice, about twenty minutes
	$(BIN)/python tests/mutate.py --jobs $(JOBS) --table docs/mutants.md

fuzz: $(INSTALLED) ## claim false things to verifier and checker, an hour
	OMP_NUM_THREADS=1 $(BIN)/python tests/false_claims.py --minutes 10
	OMP_NUM_THREADS=1 $(BIN)/python tests/check/fuzz.py --minutes 30
	OMP_NUM_THREADS=1 $(BIN)/python tests/check/models.py --minutes 5
	OMP_NUM_THREADS=1 $(BIN)/python tests/check/extremes.py --minutes 5
	OMP_NUM_THREADS=1 $(BIN)/python tests/lying.py --minutes 10

bench: $(INSTALLED) ## measure speed in ratios, about four minutes
	$(BIN)/python benchmarks/run.py

docs: $(INSTALLED) ## build the documentation into site/
	$(BIN)/mkdocs build --quiet

clean: ## remove the environment and all caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist site src/*.egg-info
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
