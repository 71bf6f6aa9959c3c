# Every target does its own set-up on a machine that has Python 3.11+ and make, inside .venv of this folder.
# A stamp file per set of extras depends on pyproject.toml, so that a change there installs again.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
# The first interpreter that is new enough; `make PYTHON=/path/to/python3.12 test` chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c '$(NEW_ENOUGH)' 2>/dev/null && echo "$$python" && break; done)
FOUND = $(or $(PYTHON),python3)
# Another folder keeps another interpreter beside: `make PYTHON=python3.13 VENV=.cache/python3.13 quick`.
VENV ?= .venv
RUN := $(VENV)/bin/python
# An environment of its own: its packages must not decide about those of the tests.
TENSORFLOW := .cache/tensorflow
FEEDS := .cache/feeds
TRAINERS := .cache/trainers
# Pinned, because nothing may replace a build for CPUs alone (named by PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL) by one for
# GPUs, which has 4.5 GB. An environment keeps it, whatever is installed there later: torchvision asks for the newest.
TORCH := torch==2.13.0
KEEP_TORCH = printf '%s\n' '$(TORCH)' >$(1)/constraints.txt && $(1)/bin/python -c 'import pathlib; print("[install]\nconstraint =", \
	pathlib.Path("$(1)/constraints.txt").resolve().as_uri())' >$(1)/pip.conf
# What docs/howto/use-other-libraries-in-map.md shows.
TRANSFORMERS := albumentations scikit-learn sentencepiece tokenizers
PIP_INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check --no-input
ARGS ?=
# The tests start hundreds of programs: without bytecode each of them compiles the package again.
export PYTHONDONTWRITEBYTECODE :=
# Tests run in one process more than there are cores, because many of them wait, and in four at most: each starts worker
# processes of its own.
PROCESSES := $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
# An interpreter that crashes ends the run: xdist would start the test again, and wait for ever at the end.
PYTEST := $(RUN) -m pytest --numprocesses $(PROCESSES) --maxprocesses 4 --max-worker-restart 0
# Where interpreters differ: processes and their ends, threads, signals, memory, what user code returns.
QUICK := tests/dataset tests/faults tests/memory tests/runtime tests/testing tests/workers $(wildcard tests/test_*.py)

.PHONY: help test quick hdfs tensorflow feeds feedtests trainers trainertests demo check soak bench referee clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

test: $(VENV)/.dev ## run the tests (ARGS="-k name" passes arguments to pytest)
	$(PYTEST) $(ARGS)

quick: $(VENV)/.dev ## run the part of the tests that another Python may break
	$(PYTEST) -m "not slow" $(QUICK) $(ARGS)

hdfs: $(VENV)/.dev ## fetch what the HDFS tests run on; says what this machine lacks for them
	$(RUN) -m tests.hdfs.cluster prepare $(ARGS)

tensorflow: $(TENSORFLOW)/.installed ## install TensorFlow beside, for the tests that ask it (ASYNCDATA_REFEREE_PYTHON)

feeds: $(FEEDS)/.installed ## install PyTorch, JAX and Keras beside, for the tests of asyncdata.feed

feedtests: $(FEEDS)/.installed ## run the tests of asyncdata.feed, and the pages about it, with these
	$(MAKE) VENV=$(FEEDS) test ARGS='tests/feed tests/architecture/test_docs.py -k "feed or libraries or torchvision"'

trainers: $(TRAINERS)/.installed ## install Lightning, Transformers, Accelerate, Orbax, flax and TensorFlow, too

trainertests: $(TRAINERS)/.installed ## run the tests of asyncdata.feed, and the pages about it, with all of them
	$(MAKE) VENV=$(TRAINERS) test ARGS='tests/feed tests/architecture/test_docs.py -k "feed or libraries or torchvision"'

demo: $(VENV)/.bench ## GCS stand-in, JPEG shards, decode in worker processes, a table at the end
	$(RUN) -m benchmarks.demo $(ARGS)

check: $(VENV)/.dev ## lint, format, types, import contracts
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports --no-cache

soak: $(VENV)/.dev ## the tests with full sample counts and the long scenarios
	ASYNCDATA_SOAK=1 $(PYTEST) -o faulthandler_timeout=7500 $(ARGS)

bench: $(VENV)/.bench ## every benchmark; one Markdown table each
	$(RUN) -m benchmarks $(ARGS)

referee: $(VENV)/.referee ## foreign clients' own test suites against fake_gcs; real trainers with feeds
	$(RUN) -m benchmarks.referee $(ARGS)
	$(MAKE) trainertests

clean: ## remove .venv, caches and build results
	rm -rf $(VENV) build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.python:
	@"$(FOUND)" -c '$(NEW_ENOUGH)' 2>/dev/null || { \
		echo "asyncdata needs Python 3.11 or newer; '$(FOUND)' is: $$("$(FOUND)" --version 2>&1 || echo 'not there')." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	"$(FOUND)" -m venv $(VENV)
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.python
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $@

$(TENSORFLOW)/.installed: | $(VENV)/.python
	"$(FOUND)" -m venv $(TENSORFLOW)
	$(TENSORFLOW)/bin/python -m pip install --quiet --disable-pip-version-check --no-input 'tensorflow-cpu>=2.16'
	@touch $@

$(FEEDS)/.installed: pyproject.toml
	$(MAKE) VENV=$(FEEDS) $(FEEDS)/.python
	@$(call KEEP_TORCH,$(FEEDS))
	$(FEEDS)/bin/python -m pip install --quiet --disable-pip-version-check --no-input '$(TORCH)' torchdata jax keras
	@# For one page of the documentation, which is skipped where they do not install.
	-$(FEEDS)/bin/python -m pip install --quiet --disable-pip-version-check --no-input $(TRANSFORMERS)
	$(MAKE) VENV=$(FEEDS) $(FEEDS)/.dev
	@touch $@

$(TRAINERS)/.installed: pyproject.toml
	$(MAKE) VENV=$(TRAINERS) $(TRAINERS)/.python
	@$(call KEEP_TORCH,$(TRAINERS))
	$(TRAINERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-input '$(TORCH)' torchdata jax keras \
		accelerate flax grain lightning optax orbax-checkpoint tensorflow-cpu transformers $(TRANSFORMERS)
	$(MAKE) VENV=$(TRAINERS) $(TRAINERS)/.dev
	@touch $@

$(VENV)/.bench: pyproject.toml | $(VENV)/.python
	$(PIP_INSTALL) --editable '.[bench]'
	@touch $@

$(VENV)/.referee: pyproject.toml | $(VENV)/.python
	$(PIP_INSTALL) --editable '.[referee]'
	@touch $@
