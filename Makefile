PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := protos kernels core taihu allreduce ps_server worker
JOB ?=
PROGRAMS ?= tests/programs
TORCH ?= torch==2.13.0
FRAMEWORKS ?= accelerate==1.15.0 pytorch-lightning==2.6.6
LOGGERS ?= mlflow-skinny==3.17.2 wandb==0.31.0 trackio==0.43.0
HUGGINGFACE ?= transformers==5.24.0 peft==0.21.2 datasets==5.2.0 trl==1.16.0
CORE ?=
SAMPLE ?=
SEEDS ?=
FIRST ?=
TESTS_AT_ONCE ?= 3
# Figures that were measured with other code than today's are listed; with --fail here none may be on the front pages.
STALE ?=
# uv installs in ten seconds what takes pip a minute. It does not read pip.conf: it is told of another index, and where
# it cannot install pip does. Most modules are never imported: to compile them all would take half of the time.
comma := ,
INSTALL := install --quiet --quiet --disable-pip-version-check --no-compile
PIP_INSTALL = $(BIN)/pip $(INSTALL)
define install
UV_SYSTEM_CERTS=true UV_DEFAULT_INDEX="$${PIP_INDEX_URL:-$$($(BIN)/pip config get global.index-url 2>/dev/null)}" \
$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[$(subst +,$(comma),$(1))]' 2>/dev/null || $(PIP_INSTALL) --editable '.[$(subst +,$(comma),$(1))]'
endef

.PHONY: docs reference train test test-deploy test-loggers test-torch frameworks loggers mutants explore check dist protos bench clean help

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

# Python's own pip fills an environment in half of the time in which that unpacks a pip of its own first. Not every
# Python has one.
$(BIN)/uv:
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -m pip --python $(BIN)/python $(INSTALL) pip uv 2>/dev/null || \
	{ $(PYTHON) -m venv $(VENV) && $(PIP_INSTALL) uv; }

$(VENV)/installed: pyproject.toml | $(BIN)/uv
	$(call install,demo)
	@touch $@

$(VENV)/tested: pyproject.toml | $(BIN)/uv
	$(call install,demo+test)
	@touch $@ $(VENV)/installed

$(VENV)/checked: pyproject.toml | $(BIN)/uv
	$(call install,demo+dev)
	@touch $@ $(VENV)/tested $(VENV)/installed

train: $(VENV)/installed ## train on this machine (JOB=file.toml for your own job)
	$(BIN)/taihu train $(JOB)

# Hundreds of processes start in the tests: they find bytecode even where the environment says not to write it.
# Some tests only wait, for timeouts and for other processes: one more is under way than there are cores.
test: $(VENV)/tested ## run the test suite
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n $(TESTS_AT_ONCE) --dist loadgroup --no-loadscope-reorder

# What needs more than Python: promtool (Debian's prometheus), mpirun (openmpi-bin), ip (iproute2), iptables, root.
test-deploy: $(VENV)/tested ## run the tests that need programs of Debian's, as root
	$(BIN)/pytest $(PROGRAMS)

test-torch: $(VENV)/tested ## install torch and packages that use it beside everything else, and run the tests of taihu.torch and exported models
	$(BIN)/pip install --quiet $(TORCH) $(FRAMEWORKS) $(HUGGINGFACE)
	$(BIN)/pytest -n 2 --dist loadfile tests/with_torch $(foreach test,$(if $(FRAMEWORKS),,backend_frameworks) $(if $(HUGGINGFACE),,huggingface),--ignore tests/with_torch/test_$(test).py)

# What the gate asks for before it runs the target above.
frameworks: ## tell the packages that test-torch installs beside torch, on a line each kind
	@echo FRAMEWORKS $(FRAMEWORKS)
	@echo HUGGINGFACE $(HUGGINGFACE)

loggers: ## tell the packages that test-loggers installs
	@echo $(LOGGERS)

test-loggers: $(VENV)/tested ## install MLflow, W&B and trackio beside everything else, and run the tests of runs that log there
	$(BIN)/pip install --quiet $(LOGGERS)
	$(BIN)/pytest tests/with_loggers

# All mutants of all cores take an hour and more: name a core, or a sample of each. A run that is broken off goes on.
mutants: $(VENV)/tested ## small wrong changes to the pure cores that tests notice (CORE=planner SAMPLE=60)
	$(call install,mutants)
	PYTHONPATH=tests nice $(BIN)/python -m mutants $(CORE) $(if $(SAMPLE),--sample $(SAMPLE))

# New seeds until Ctrl-C, or until one fails; SEEDS=2000 for so many.
explore: $(VENV)/tested ## run the daemons in simulated worlds, with faults, and judge every run
	$(BIN)/taihu dev explore $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST))

check: $(VENV)/checked ## style, types, layers, generated code and pages, the site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	PATH=$(CURDIR)/$(BIN):$$PATH ./protos/generate --check
	PATH=$(CURDIR)/$(BIN):$$PATH ./docs/generate --check
	$(MAKE) docs
	$(BIN)/python -m benchmarks stale $(STALE)

# What the index would be given; the wheel is built from the sdist.
dist: $(VENV)/checked ## build sdist and wheel, check them, and try them in an empty environment
	rm -rf dist
	$(BIN)/pyproject-build --outdir dist > /dev/null
	$(BIN)/twine check --strict dist/*
	$(BIN)/pytest tests/distribution

protos: $(VENV)/checked ## regenerate protobuf code
	PATH=$(CURDIR)/$(BIN):$$PATH ./protos/generate

reference: $(VENV)/checked ## regenerate the pages of docs/ that come from the code: job keys, commands, metrics, errors
	PATH=$(CURDIR)/$(BIN):$$PATH ./docs/generate

# Pages that have not changed are not read again. Links and anchors that lead nowhere are errors.
docs: $(VENV)/checked ## build the site of docs/ into build/site, which needs no network then
	$(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees docs build/site
	PYTHONPATH=docs $(BIN)/python -m from_code.offline build/site

bench: $(VENV)/installed ## time dense push and pull on loopback
	$(BIN)/taihu dev bench exchange --model resnet50 --servers 1 --workers 3

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
