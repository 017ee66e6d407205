# `make demo` and `make test` are all that a newcomer needs; both set up .venv on their first run.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install -c constraints.txt

SECONDS ?= 60

.PHONY: demo test check fuzz bench docs clean
.NOTPARALLEL:

demo: .venv/test.stamp  ## the Asia network: its plan, log Z, marginals, and a picture
	@mkdir -p build
	$(BIN)/rdpgraph explain examples/asia.bif
	$(BIN)/rdpgraph infer examples/asia.bif --task PR
	$(BIN)/rdpgraph infer examples/asia.bif --task MAR --set dysp=yes --set asia=yes
	$(BIN)/rdpgraph draw examples/asia.bif -o build/asia.png
	@echo "The picture is build/asia.png"

test: .venv/test.stamp  ## the tests, and the examples in docstrings, README and docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --numprocesses auto --maxprocesses 4

check: .venv/test.stamp .venv/check.stamp  ## what CI runs: linter, types, tests
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(MAKE) test

fuzz: .venv/test.stamp  ## random models and files against plain loops; SECONDS=60, SEED= of the first case
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

bench: .venv/test.stamp .venv/bench.stamp  ## the tables of docs/
	$(BIN)/python tests/benchmarks/uai.py --task MAR
	$(BIN)/python tests/benchmarks/uai.py --task PR
	$(BIN)/python tests/benchmarks/bnlearn.py
	$(BIN)/python tests/benchmarks/loopy.py
	$(BIN)/python tests/benchmarks/chain.py
	$(BIN)/python tests/benchmarks/hypertree.py
	$(BIN)/python tests/benchmarks/alignment.py
	$(BIN)/python tests/benchmarks/randomized.py
	$(BIN)/python tests/benchmarks/randomized_grid.py
	$(BIN)/python tests/benchmarks/lowrank.py

docs: .venv/test.stamp .venv/docs.stamp  ## the pages, in build/docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

clean:
	rm -rf .venv build dist docs/gallery docs/generated

# The pip that comes with Python 3.11 does not know dependency groups (--group).
.venv/pip.stamp:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip --disable-pip-version-check --quiet install --upgrade 'pip>=25.1'
	@touch $@

.venv/test.stamp: .venv/pip.stamp pyproject.toml constraints.txt
	$(PIP) -e '.[draw]' --group test
	@touch $@

.venv/%.stamp: .venv/pip.stamp pyproject.toml constraints.txt
	$(PIP) --group $*
	@touch $@
