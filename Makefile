# make demo   a real task on the bundled model        make test   all tests
# make check  style, types, floors                    make soak   the long checks at full counts
# Each makes .venv and installs what it needs. USE_UV=1 installs with uv; SEED=N chooses the demo's task.

PYTHON ?= python3
SEED ?= 1
EFFORT ?= high
BIN := .venv/bin

.PHONY: demo test check soak install
.DEFAULT_GOAL := demo

ifdef USE_UV
PIP := uv pip install --quiet --python $(BIN)/python --torch-backend=cpu
else
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif

# torch first and by its range: pip then takes the build that is at hand (on Linux a CPU build where one is offered)
# and nothing after it brings another.
.venv/installed: pyproject.toml
	@echo "making .venv and installing (once; a minute or two with a CPU build of torch at hand)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "longstep needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) 'torch>=2.11,<2.14' 'numpy>=2.0,<3'
	@$(PIP) -e '.[dev]'
	@if [ -n "$$CI" ]; then $(BIN)/python -c 'import torch; assert torch.version.cuda is None, f"CI wants a CPU build of torch, got {torch.__version__}"'; fi
	@$(BIN)/python -m longstep.sandbox || sh scripts/system-packages.sh bubblewrap "the sandbox"
	@touch $@

install: .venv/installed

demo: .venv/installed
	@$(BIN)/longstep demo --seed $(SEED) --effort $(EFFORT)

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: .venv/installed
	$(BIN)/python -m pytest --cov --cov-report=term

soak: .venv/installed
	$(BIN)/python -m pytest -m soak -s
