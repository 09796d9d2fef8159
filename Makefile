# Everything a developer or CI calls. Needs make and Python >= 3.11 (choose one with PYTHON=...); makes its own .venv.
# Every target first brings .venv up to date: quickly when nothing changed.

PYTHON ?= python3
BIN := .venv/bin
# Tests of real processes wait more than they compute: a few at a time, also on few cores. A part is looked at closely: one at a time.
WORKERS ?= $(if $(ARGS),0,3)
# A process that dies by a signal ends the run. pytest-xdist would repeat the test in new processes, and then wait without end.
SHARED = -n $(WORKERS) --dist loadscope --max-worker-restart=0
# Compiled modules go there too: nothing but .venv is left beside the sources. Where the environment forbids them (images for containers do)
# each process that a test starts would compile everything again: 3.3 s instead of 0.9 s for a broker.
export PYTHONPYCACHEPREFIX := $(CURDIR)/.venv/pycache
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-long coverage spark-matrix check mypy pyright fix sim sim-core mutants chaos bench docs docs-site helm release

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## ?/  make \1	/' | expand -t 16

setup: ## make .venv with every extra and the demo's data set
	@PYTHON="$(PYTHON)" scripts/setup_environment.sh

demo: setup ## three brokers, 336,776 real flights, 3,813 jobs, brokers and a worker killed, everything verified
	@$(BIN)/python -m examples.demo_flights

# Spark's tests need a Java: one that is there, or one that apt can install; else they fail and say how to get one.
JAVA = JAVA_HOME="$$($(BIN)/python -m scripts.find_java --install)"

test: setup ## every test but the long ones, in WORKERS=3 processes; with ARGS="-k name -x" (to pytest) in one
	@$(JAVA) $(BIN)/python -m pytest $(SHARED) $(ARGS)

test-long: setup ## the long ones: how other systems failed, and more faults on real processes
	@$(JAVA) $(BIN)/python -m pytest -m long $(SHARED) $(ARGS)

coverage: setup ## the tests, and the lines of the product that none of them runs (ARGS="tests/cli")
	@mkdir -p .venv/coverage
	@$(JAVA) $(BIN)/python -m pytest $(SHARED) --cov --cov-report=term-missing:skip-covered $(ARGS)

spark-matrix: setup ## Spark's tests on other versions: PySpark 4.0 to 4.3, Python 3.11 to 3.13 (ARGS="4.0=3.11")
	@$(JAVA) $(BIN)/python -m scripts.spark_matrix $(ARGS)

check: setup ## format, lint, types, import rules, generated files; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m scripts.check_generated
	@$(MAKE) --no-print-directory -j2 mypy pyright

mypy:
	$(BIN)/mypy -p raftmq -p pyspark_raftmq
	$(BIN)/mypy tests examples scripts sim bench helm/raftmq/files/scale_down.py

pyright:
	$(BIN)/pyright
	$(BIN)/pyright --project tests/typing

fix: setup ## format, sort imports, regenerate protobuf modules and the reference pages
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	PYTHON=$(BIN)/python scripts/generate_protobuf.sh
	$(BIN)/python -m scripts.generate_docs

sim: setup ## simulate whole brokers and clients: FIRST=0 SEEDS=100, or one SEED=17 again
	@$(BIN)/python -m sim.cluster $(if $(SEED),--seed $(SEED)) $(if $(FIRST),--first $(FIRST)) $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

sim-core: setup ## simulate the consensus core alone: FIRST=0 SEEDS=1000, or one SEED=17 again
	@$(BIN)/python -m sim.core $(if $(SEED),--seed $(SEED)) $(if $(FIRST),--first $(FIRST)) $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

mutants: setup ## hunt every known bug from its first seed on, and write the table in docs/internals/testing.md
	@$(BIN)/python -m sim.mutant_table $(ARGS)

chaos: setup ## real brokers, real faults, judged: MINUTES=10, or one SEED=17 again (ARGS="--families links,power --keep DIR")
	@$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

bench: setup ## measure; prints one table (ARGS="--quick", ARGS="--peers kafka,nats")
	@$(BIN)/python -m bench $(ARGS)

docs: setup ## write the reference pages in docs/reference from the code
	@$(BIN)/python -m scripts.generate_docs

docs-site: setup ## build the documentation site into site/ (ARGS=serve, ARGS="mike deploy 0.1 latest")
	@scripts/docs_site/run.sh $(ARGS)

release: setup ## build the archives, try the wheel on each Python, list packages and licences in dist/ (ARGS=--draft)
	@$(BIN)/python -m scripts.release $(ARGS)

helm: setup ## render the Helm chart again for the tests, with the helm on your PATH
	@$(BIN)/python -m scripts.generate_docs >/dev/null
	@$(BIN)/python -m tests.support.helm.render
