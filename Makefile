# Everything a developer does here. Each target makes what it needs; the second time is quick.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Pins whatever pip installs, the build backend included.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test check format bench bench-sdk crash soak soak-sdk load fuzz cookbook compatibility proto clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/.serve  ## Fine-tune a real model, here and now
	$(BIN)/tinsmith demo

test: $(VENV)/.dev  ## Run all tests, in parallel
	$(BIN)/pytest

check: $(VENV)/.dev  ## Lint, types, and who may import whom
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev  ## Format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.dev  ## Measure the engine against transformers + PEFT
	$(BIN)/python bench/engine.py

crash: $(VENV)/.dev  ## Train through two dozen kills; crash at every write, over and over
	TINSMITH_CRASH_KILLS=24 TINSMITH_CRASH_EVERY=1 $(BIN)/pytest tests/crash

soak: $(VENV)/.dev  ## An hour of mixed load (MINUTES=5: five minutes): does anything grow?
	$(BIN)/python bench/soak.py --minutes $(or $(MINUTES),60)

cookbook: $(VENV)/.dev  ## Run tinker-cookbook's recipes, unmodified, against a live service (minutes)
	$(BIN)/python tests/conformance/cookbook.py

compatibility: $(VENV)/.dev  ## Call every method of the official SDKs and write docs/compatibility.md (minutes)
	$(BIN)/python tests/conformance/compatibility.py

bench-sdk: $(VENV)/.dev  ## Measure the SDK against the official one
	$(BIN)/python bench/sdk.py

soak-sdk: $(VENV)/.dev  ## 20,000 samples and 200 training steps through 5 % faults
	$(BIN)/python tests/testing/client_soak.py

load: $(VENV)/.dev  ## 2,000 samples at once, trainers and a greedy tenant, on one service
	$(BIN)/python bench/load.py

MINUTES ?= 5
fuzz: $(VENV)/.dev  ## Feed nonsense to the decoders and to a live service (MINUTES=5)
	$(BIN)/python tests/security/fuzz.py --minutes $(MINUTES)

proto: $(VENV)/.dev  ## Regenerate wire/messages_pb2.py (needs grpcio-tools 1.73, for code any protobuf >= 6.31 reads)
	$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/tinsmith/wire/messages.proto

clean:  ## Remove what was made here
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[serve]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@ $(VENV)/.serve
