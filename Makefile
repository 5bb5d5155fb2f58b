# Two commands set everything up: `make demo` and `make test`. `make help` lists the rest.
#
# Each stamp file in .venv stands for a finished installation, so that a second call runs no pip.

VENV   := .venv
DALI   ?= $(or $(patsubst $(VENV)/.made-for-%,%,$(wildcard $(VENV)/.made-for-*)),cu13)
PYTHON ?=
ARGS   ?=
# Processes that test side by side; one where there is a GPU, whose memory some tests fill.
TESTERS ?= $(if $(wildcard /dev/nvidia0),0,2)

PYTHONS  := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)
MADE     := $(VENV)/.made-for-$(DALI)
FOR_DEMO := $(VENV)/.installed-for-demo
FOR_DEV  := $(VENV)/.installed-for-dev

# Tools are given relative paths: a checkout may lie in a folder with a space in its name.
PIP := $(VENV)/bin/python -m pip
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint format types clean distclean

help:
	@echo "make demo       install into $(VENV) and run the main job on bundled photographs"
	@echo "make test       install into $(VENV) and run the quick tests (a GPU's skip without one)"
	@echo "make test-slow  the rest: those marked slow, of more than ten seconds"
	@echo "make lint       ruff: style and format, changing nothing"
	@echo "make format     ruff: put both right"
	@echo "make types      mypy --strict on an installed copy, and on the tests"
	@echo "make clean      remove build products and caches"
	@echo "make distclean  the same, and $(VENV)"
	@echo
	@echo "DALI=cu12 or cu13   the CUDA version of DALI (now $(DALI)); another one makes $(VENV) anew"
	@echo "PYTHON=python3.12   makes $(VENV) with this Python, not the first found of 3.11 or newer"
	@echo "TESTERS=4           tests in four processes (now $(TESTERS); 0: without others)"
	@echo "ARGS='-k shards'    is passed on to accelssl demo or to pytest"

demo: $(FOR_DEMO)
	@echo "== accelssl demo"
	@$(BIN)/accelssl demo $(ARGS)
	@echo "For the commands of README.md in this shell: . $(BIN)/activate"

# Tests train on the CPU, several side by side: one thread each. See accelssl.cli for the policy.
export OMP_WAIT_POLICY ?= passive
export OMP_NUM_THREADS ?= 1

# pytest itself, never `python -m pytest`: that one puts the checkout on sys.path.
test: $(FOR_DEV)
	@echo "== pytest: the quick tests"
	@$(BIN)/pytest -m "not slow" -n $(TESTERS) --dist loadfile $(ARGS)

test-slow: $(FOR_DEV)
	@echo "== pytest: the slow tests"
	@$(BIN)/pytest -m slow $(ARGS)

lint: $(FOR_DEV)
	@echo "== ruff: style, then format"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(FOR_DEV)
	@echo "== ruff: repairing style and format"
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# A type checker cannot follow an editable install; a stale build/ would leak into the copy.
types: $(FOR_DEV)
	@echo "== mypy --strict: the package from a copy in build/typed, then the tests"
	@rm -rf build *.egg-info
	@$(PIP) install --quiet --no-deps --target build/typed .
	@$(BIN)/mypy
	@$(BIN)/mypy tests

clean:
	@echo "== removing build products and caches"
	@rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	@echo "== removing $(VENV)"
	@rm -rf $(VENV)

$(FOR_DEMO): $(MADE) pyproject.toml
	@echo "== installing accelssl[$(DALI),demo] into $(VENV): some 7 GB with PyTorch for CUDA"
	@$(PIP) install --editable '.[$(DALI),demo]'
	@touch $@

$(FOR_DEV): $(MADE) pyproject.toml
	@echo "== installing accelssl[$(DALI),demo,dev] into $(VENV): some 7 GB with PyTorch for CUDA"
	@$(PIP) install --editable '.[$(DALI),demo,dev]'
	@touch $(FOR_DEMO) $@

# The DALI of one CUDA version overwrites the files of another: each starts from an empty folder.
# A candidate must run to count: pyenv and others leave names on the path that only complain.
$(MADE):
	@case "$(DALI)" in cu12|cu13) ;; *) \
	    echo "DALI=$(DALI) is unknown. Use DALI=cu12 or DALI=cu13." >&2; exit 2;; \
	esac
	@case "$$(uname -s) $$(uname -m)" in "Linux x86_64"|"Linux aarch64") ;; *) \
	    echo "NVIDIA DALI has no package for $$(uname -s) on $$(uname -m)." >&2; \
	    echo "Use Linux on x86_64 or aarch64 (on Windows, inside WSL 2)." >&2; exit 2;; \
	esac
	@if [ -e $(VENV) ] && [ -z "$(wildcard $(VENV)/.made-for-*)" ]; then \
	    echo "$(VENV) is there, and not from this Makefile, which would begin it anew." >&2; \
	    echo "Remove it, or name another folder: make VENV=.venv-make demo" >&2; exit 2; \
	fi
	@for python in $(PYTHONS); do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	            echo "$$python cannot make virtual environments: its module venv is missing." >&2; \
	            echo "Install it (on Debian and Ubuntu: apt-get install python3-venv)." >&2; exit 2; \
	        fi; \
	        echo "== making $(VENV) with $$("$$python" --version) ($$(command -v "$$python"))"; \
	        "$$python" -m venv --clear $(VENV) && touch $@; exit; \
	    fi; \
	done; \
	echo "No Python 3.11 or newer among: $(PYTHONS)." >&2; \
	echo "Install one, or name it: make PYTHON=/path/to/python3.12 demo" >&2; exit 2
