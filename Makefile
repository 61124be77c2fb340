PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := protos kernels taihu allreduce ps_server worker
JOB ?=
PROGRAMS ?= tests/programs
TORCH ?= torch==2.13.0
CORE ?=
SAMPLE ?=
TESTS_AT_ONCE ?= 3

.PHONY: docs train test test-deploy test-torch mutants check protos bench clean help

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --quiet --editable '.[demo,dev]'
	@touch $@

train: $(VENV)/installed ## train on this machine (JOB=file.toml for your own job)
	$(BIN)/taihu train $(JOB)

# Hundreds of processes start in the tests: they find bytecode even where the environment says not to write it.
# Some tests only wait, for timeouts and for other processes: one more is under way than there are cores.
test: $(VENV)/installed ## run the test suite
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n $(TESTS_AT_ONCE) --dist loadgroup

# What needs more than Python: promtool (Debian's prometheus), mpirun (openmpi-bin), ip (iproute2), iptables, root.
test-deploy: $(VENV)/installed ## run the tests that need programs of Debian's, as root
	$(BIN)/pytest $(PROGRAMS)

test-torch: $(VENV)/installed ## install torch beside everything else, and run the tests of models exported to it
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pytest tests/with_torch

# All mutants of all cores take an hour and more: name a core, or a sample of each. A run that is broken off goes on.
mutants: $(VENV)/installed ## small wrong changes to the pure cores that tests notice (CORE=planner SAMPLE=60)
	$(BIN)/pip install --quiet --quiet --editable '.[mutants]'
	PYTHONPATH=tests nice $(BIN)/python -m mutants $(CORE) $(if $(SAMPLE),--sample $(SAMPLE))

check: $(VENV)/installed ## style, types, layers, generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	PATH=$(CURDIR)/$(BIN):$$PATH ./protos/generate --check
	PATH=$(CURDIR)/$(BIN):$$PATH ./docs/generate --check

protos: $(VENV)/installed ## regenerate protobuf code
	PATH=$(CURDIR)/$(BIN):$$PATH ./protos/generate

docs: $(VENV)/installed ## regenerate docs/job.md after a change of the settings
	PATH=$(CURDIR)/$(BIN):$$PATH ./docs/generate

bench: $(VENV)/installed ## time dense push and pull on loopback
	$(BIN)/taihu bench exchange --model resnet50 --servers 1 --workers 3

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
