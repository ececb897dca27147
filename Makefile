# Every target works as the only command typed in a fresh clone: the environment is made on demand,
# in .venv, and only once. As root on Debian, system packages that are missing are installed too;
# otherwise they are named, and the tests that need them are skipped with the reason.
#
#   make demo                   train a small model on two nodes emulated on this machine
#   make test                   everything: lint, unit tests, real processes, virtual clusters
#   make unit | testbed | lint | bench
#   make cluster-up NODES=8     a virtual cluster with real sshd; then: make cluster-down
#
# PYTHON=python3.12 chooses the interpreter, TORCH=torch==2.6.0 what pip installs when there is no
# torch yet, PYTEST="-x -k name" adds options for pytest.

SHELL := /bin/bash
.DEFAULT_GOAL := help
export PYTHON TORCH
# tests start Python thousands of times: what has been compiled once should be there
unexport PYTHONDONTWRITEBYTECODE

bin := .venv/bin
# at most 8: every worker may start several processes that import torch
workers ?= $(shell n=$$(nproc); echo $$((n < 8 ? n : 8)))
vcluster := $(bin)/python -m tests.testbed.vcluster
scripts := .ci/run $(wildcard tools/*.sh)
NODES ?= 4

.PHONY: help demo test lint format unit testbed bench cluster-up cluster-down clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

.venv/.ready-run: pyproject.toml tools/setup.sh
	@tools/setup.sh run

.venv/.ready-test: pyproject.toml tools/setup.sh
	@tools/setup.sh test

demo: .venv/.ready-run
	$(bin)/dslaunch run clusters/local.yaml examples/train_ddp.py

# one after the other also under `make -j`: they share the CPUs, and their output is read
test: .venv/.ready-test
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory testbed

lint: .venv/.ready-test
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mypy
	$(bin)/lint-imports --no-cache
	@if command -v shellcheck > /dev/null; then set -x; shellcheck $(scripts); \
	else echo "shellcheck is not installed: scripts not checked"; fi

format: .venv/.ready-test
	$(bin)/ruff check --fix .
	$(bin)/ruff format .

unit: .venv/.ready-test
	$(bin)/python -m pytest -q -n $(workers) -m "not sshd" --durations=5 $(PYTEST)

testbed: .venv/.ready-test
	$(bin)/python -m pytest -q -n $(workers) -m sshd --durations=5 $(PYTEST)

bench: .venv/.ready-test
	@for script in benchmarks/*.py; do echo "== $$script"; $(bin)/python $$script || exit 1; done

cluster-up: .venv/.ready-run
	@$(vcluster) up --nodes $(NODES)

cluster-down: .venv/.ready-run
	@$(vcluster) down

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist build
