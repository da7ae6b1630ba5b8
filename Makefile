# Everything a developer does here. Each target makes what it needs; the second time is quick.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Pins whatever pip installs, the build backend included.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test check format bench load fuzz proto clean

help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

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
