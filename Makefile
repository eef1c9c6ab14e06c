# Every target needs only python3 (3.11 or newer), git and make, and prepares .venv first.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
ENGINES := $(VENV)/.engines
LOG    := $(VENV)/pip.log

TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

# The default Linux wheel of torch includes gigabytes of CUDA libraries. On Linux the CPU build is therefore installed
# by its full version, from the indexes that pip already knows or else from PyTorch's own. On other systems the default
# wheel is the CPU build.
ifeq ($(shell uname -s),Linux)
TORCH := torch==$(TORCH_VERSION)+cpu
else
TORCH := torch==$(TORCH_VERSION)
endif

PIP = $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt
SHOW_LOG = { echo "setup failed; the end of $(LOG):"; tail -n 40 $(LOG); exit 1; }

.PHONY: help setup engines demo static style types check quick test tests long seeds bench chaos format clean

help: ## show what each target does
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
	@$(PIP) -e '.[dev,bench,hosts,data,images,http,s3,datasets,serve,onnx,parquet,tensorboard]' >> $(LOG) 2>&1 || $(SHOW_LOG)
	@touch $@

engines: $(ENGINES) ## also install Ray and PySpark, for the tests of these engines

$(ENGINES): $(READY)
	@echo "[setup] Ray and PySpark for the tests of the engines, about a minute the first time"
	@$(PIP) -e '.[ray,spark]' >> $(LOG) 2>&1 || $(SHOW_LOG)
	@touch $@

demo: setup ## train LeNet on Fashion-MNIST with 2 workers and 2 parameter servers
	@$(BIN)/paceline demo

# Real runs wait more than half of the time: two processes for each core, and not so many that memory is short.
PROCESSES ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$(( n > 4 ? 8 : 2 * n )))
# A crash of a test process ends the run: after a restart, pytest-xdist may wait for ever for the tests of the crashed one.
PYTEST := $(BIN)/pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

static: style types ## check format, lint, layers and types

style: setup
	@echo "[format] ruff format --check" && $(BIN)/ruff format --check -q .
	@echo "[lint] ruff check" && $(BIN)/ruff check -q .
	@echo "[layers] lint-imports" && $(BIN)/lint-imports

types: setup
	@echo "[types] mypy --strict" && $(BIN)/mypy

# mypy uses one core, and real runs often wait: the types are checked beside the tests.
check: style ## check format, lint, types and layers, and run the tests without real runs; a few minutes
	@$(MAKE) --no-print-directory -j 2 types quick

test: style engines ## everything that a change must pass: the static checks and every test; at most 15 minutes on 2 cores
	@$(MAKE) --no-print-directory -j 2 types tests

quick: setup
	@echo "[tests] pytest -n $(PROCESSES), without real runs and with 200 simulator seeds"
	@$(PYTEST) -m "not real_run and not many_seeds"

tests: setup
	@echo "[tests] pytest -n $(PROCESSES)" && $(PYTEST)

SEEDS  ?= 100000
START  ?= $(shell echo $$(( $$(date +%s) * 100 )))
ROUNDS ?= 5

long: seeds chaos bench ## many simulator seeds, all campaigns and all benchmarks; takes hours

seeds: setup ## play 100,000 simulator seeds from START on (SEEDS=100000)
	@echo "paceline dev sim --start $(START) --seeds $(SEEDS)"
	@$(BIN)/paceline dev sim --start $(START) --seeds $(SEEDS)

chaos: engines ## kill, stop, cut and resume real runs about 1,200 times, for hours; the figures go to chaos/
	@$(BIN)/paceline dev chaos --campaign all --seed 1 --dir chaos --json chaos/all.json
	@for mode in bsp ssp:3 asp; do \
		$(BIN)/paceline dev hosts --kills 15 --cuts 15 --leaves 20 --mode $$mode --dir chaos/hosts-$$mode \
			--json chaos/hosts-$$mode.json || exit 1; \
	done
	@for faults in "--agent-cuts 10" "--role-cuts 10" "--adoptions 10" "--joins 20 --drains 20"; do \
		name=chaos/hosts-$$(echo $$faults | tr -d ' 0-9-'); \
		$(BIN)/paceline dev hosts $$faults --dir $$name --json $$name.json || exit 1; \
	done
	@for engine in "ray --adds 5" spark; do \
		name=chaos/$$(echo $$engine | cut -d ' ' -f 1); \
		$(BIN)/paceline dev engines --engine $$engine --kills 10 --dir $$name --json $$name.json || exit 1; \
	done

bench: engines ## measure beside peers for about 25 minutes and write docs/performance.md (ROUNDS=5)
	@$(BIN)/python bench/all.py --rounds $(ROUNDS)

format: setup ## format the code and apply the safe fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## remove .venv, caches and build output (runs/ stays)
	@rm -rf $(VENV) build dist src/*.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -not -path './.git/*' -exec rm -rf {} +
