# `make demo` and `make test` are all that a newcomer needs; both set up .venv on their first run.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install -c $(CONSTRAINTS)

# Where torch comes from, if not from pip's own index, whose builds for Linux bring CUDA packages:
# make test TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# What is tested, all by default: make test TESTS=tests/model
TESTS ?=
PYTHONS ?= python3.11 python3.12 python3.13
SECONDS ?= 60
GALLERY ?= 1

.PHONY: demo test test-all lint check lowest versions fuzz bench docs native wheel clean
.NOTPARALLEL:

demo: $(VENV)/test.stamp  ## the Asia network: its plan, log Z, marginals, and a picture
	@mkdir -p build
	$(BIN)/rdpgraph explain examples/asia.bif
	$(BIN)/rdpgraph infer examples/asia.bif --task PR
	$(BIN)/rdpgraph infer examples/asia.bif --task MAR --set dysp=yes --set asia=yes
	$(BIN)/rdpgraph draw examples/asia.bif -o build/asia.png
	@echo "The picture is build/asia.png"

# Every worker imports all tests: bytecode that is kept takes half of the time off that, also where the
# environment says not to write it beside the sources.
BYTECODE = PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(CURDIR)/build/bytecode
PYTEST = $(BYTECODE) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --numprocesses auto --maxprocesses 4

test: $(VENV)/test.stamp  ## the tests that take no seconds each
	$(PYTEST) -m "not long" $(TESTS)

test-all: $(VENV)/test.stamp  ## all tests, and the examples in docstrings, README and docs
	$(PYTEST) $(TESTS)

lint: $(VENV)/test.stamp $(VENV)/check.stamp  ## the linter, the formatter and the types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

check: lint test  ## before a commit; CI runs it, and each benchmark at a tiny size

lowest:  ## all tests on the oldest releases that pyproject.toml allows; LOWEST=torch==2.13 for another
	@mkdir -p build
	$(PYTHON) tests/lowest.py $(LOWEST) > build/lowest.txt
	$(MAKE) test-all VENV=build/lowest CONSTRAINTS=build/lowest.txt

versions:  ## all tests on every Python of PYTHONS that is there
	@for python in $(PYTHONS); do \
	  if $$python --version > /dev/null 2>&1; \
	  then $(MAKE) test-all PYTHON=$$python VENV=build/$${python##*/} || exit 1; \
	  else echo "$$python is not here: skipped"; fi; \
	done

fuzz: $(VENV)/test.stamp  ## random models and files against plain loops; SECONDS=60, SEED= of the first case
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

bench: $(VENV)/test.stamp $(VENV)/bench.stamp  ## the tables of docs/
	$(BIN)/python tests/benchmarks/uai.py --task MAR
	$(BIN)/python tests/benchmarks/uai.py --task PR
	$(BIN)/python tests/benchmarks/bnlearn.py
	$(BIN)/python tests/benchmarks/loopy.py
	$(BIN)/python tests/benchmarks/chain.py
	$(BIN)/python tests/benchmarks/crf.py --large
	$(BIN)/python tests/benchmarks/hypertree.py
	$(BIN)/python tests/benchmarks/alignment.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/recursions.py
	$(BIN)/python tests/benchmarks/randomized.py
	$(BIN)/python tests/benchmarks/randomized_grid.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/distributed.py
	$(BIN)/python tests/benchmarks/lowrank.py

docs: $(VENV)/test.stamp $(VENV)/docs.stamp  ## the pages, in build/docs; GALLERY=0 runs no example
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q -D plot_gallery=$(GALLERY) -b html docs build/docs

RUNTIMES = $(foreach name,libasan.so libstdc++.so,$(shell c++ -print-file-name=$(name)))
SANITIZED = RDPGRAPH_DEBUG=1 ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$(RUNTIMES)"

native: $(VENV)/test.stamp  ## the compiled code of this machine; DEBUG=1: with -O1, -g and sanitizers
	$(if $(DEBUG),$(SANITIZED)) $(BIN)/python -m rdpgraph.native

wheel: $(VENV)/pip.stamp  ## a wheel with the compiled library for this platform, in dist
	$(BIN)/python -m pip --disable-pip-version-check wheel --no-deps --wheel-dir dist .

clean:
	rm -rf .venv build dist docs/gallery docs/generated rdpgraph/native/compiled

# The pip that comes with Python 3.11 does not know dependency groups (--group).
$(VENV)/pip.stamp:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip --disable-pip-version-check --quiet install --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/test.stamp: $(VENV)/pip.stamp pyproject.toml $(CONSTRAINTS)
	$(if $(TORCH_INDEX),$(PIP) --index-url $(TORCH_INDEX) torch)
	$(PIP) -e '.[draw]' --group test
	@touch $@

$(VENV)/%.stamp: $(VENV)/pip.stamp pyproject.toml $(CONSTRAINTS)
	$(PIP) --group $*
	@touch $@
