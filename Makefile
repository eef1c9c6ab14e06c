# `make demo` and `make test` need python3 (3.11 or newer), git and make; they prepare .venv by themselves.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
LOG    := $(VENV)/pip.log

TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

# The ordinary Linux wheel of torch brings gigabytes of CUDA libraries, so there the CPU build is asked for by
# its full version: from the indexes that pip already knows, else from PyTorch's own. Elsewhere the ordinary
# wheel is the CPU build.
ifeq ($(shell uname -s),Linux)
TORCH := torch==$(TORCH_VERSION)+cpu
else
TORCH := torch==$(TORCH_VERSION)
endif

PIP = $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt
SHOW_LOG = { echo "setup failed; the end of $(LOG):"; tail -n 40 $(LOG); exit 1; }

.PHONY: help setup demo test bench chaos format clean

help: ## say what each target does
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'

setup: $(READY) ## prepare .venv (again only when pyproject.toml or constraints.txt changed)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "setup: $(PYTHON) is missing or older than 3.11; try make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "[setup 1/3] virtual environment in $(VENV)"
	@mkdir -p $(VENV) && : > $(LOG)
	@$(BIN)/python -m pip --version >> $(LOG) 2>&1 || $(PYTHON) -m venv $(VENV) >> $(LOG) 2>&1 || $(SHOW_LOG)
	@echo "[setup 2/3] $(TORCH), about a minute the first time"
	@$(PIP) '$(TORCH)' >> $(LOG) 2>&1 || \
		$(PIP) --extra-index-url $(TORCH_CPU_INDEX) '$(TORCH)' >> $(LOG) 2>&1 || $(SHOW_LOG)
	@echo "[setup 3/3] Paceline and its tools"
	@$(PIP) -e '.[dev,bench]' >> $(LOG) 2>&1 || $(SHOW_LOG)
	@touch $@

demo: setup ## train LeNet on Fashion-MNIST with 2 workers and 2 parameter servers
	@$(BIN)/paceline demo

test: setup ## check format, lint, types and layers, and run every test
	@echo "[test 1/5] format: ruff format --check" && $(BIN)/ruff format --check -q .
	@echo "[test 2/5] lint: ruff check" && $(BIN)/ruff check -q .
	@echo "[test 3/5] types: mypy --strict" && $(BIN)/mypy
	@echo "[test 4/5] layers: lint-imports" && $(BIN)/lint-imports
	@echo "[test 5/5] tests: pytest -n 2" && $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

ROUNDS ?= 5

bench: setup ## measure beside peers for some 25 minutes and write docs/performance.md (ROUNDS=5)
	@$(BIN)/python bench/all.py --rounds $(ROUNDS)

chaos: setup ## kill, stop, cut and resume real runs some 1,200 times, for hours; figures go to chaos/
	@$(BIN)/paceline dev chaos --campaign all --seed 1 --dir chaos --json chaos/all.json

format: setup ## format the code and apply the safe fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## remove .venv, caches and build output (runs/ stays)
	@rm -rf $(VENV) build dist src/*.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -not -path './.git/*' -exec rm -rf {} +
