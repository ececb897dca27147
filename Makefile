# Every target works as the only command typed in a fresh clone: the environment is made on demand,
# in .venv, and only once. As root on Debian, system packages that are missing are installed too;
# otherwise they are named, and the tests that need them are skipped with the reason.
#
#   make demo                   train a small model on two nodes emulated on this machine
#   make test                   everything: lint, unit tests, real processes, virtual clusters
#   make test-all               `make test`, long tests, many examples of property tests, 40 runs
#                               with random faults; SEED=7 RUNS=1000
#   make unit | testbed | lint | bench
#   make hostile                many more hostile answers of nodes than `make test` tries
#   make gpu                    what needs an NVIDIA GPU: CUDA, NCCL, nvidia-smi; skipped without one
#   make cluster-up NODES=8     a virtual cluster with real sshd; then: make cluster-down
#   make docs                   the documentation as a site, in build/site
#   make reference | pictures   write what the documentation has from the program, and real runs
#   make lock                   write requirements/*.lock; UPGRADE=1: with the newest versions
#   make man                    the man pages, in build/man
#   make audit | sbom | dist    known vulnerabilities; list of components; all files of a release
#
# PYTHON=python3.12 chooses the interpreter, TORCH=torch==2.6.0 what pip installs when there is no
# torch yet, PYTEST="-x -k name" adds options for pytest.

SHELL := /bin/bash
.DEFAULT_GOAL := help
export PYTHON TORCH
# tests start Python thousands of times: what has been compiled once should be there
unexport PYTHONDONTWRITEBYTECODE

bin := .venv/bin
# twice the CPUs: tests wait for processes, timeouts, SLURM and sshd half of their time; at most 8,
# since every worker may start several processes that import torch
workers ?= $(shell n=$$(nproc); echo $$((n < 4 ? 2 * n : 8)))
# every worker begins with files of its own, so that a file's cluster is seldom started twice
pytest := $(bin)/python -m pytest -q --dist worksteal --durations=15
vcluster := $(bin)/python -m tests.testbed.vcluster
scripts := .ci/run $(wildcard tools/*.sh)
texts := src tests docs templates clusters examples tools benchmarks $(wildcard *.md)
NODES ?= 4
MUTATIONS ?= 50000
SEED ?= 1
RUNS ?= 40

.PHONY: help demo test test-all lint compiled format unit testbed hostile gpu bench docs reference \
  pictures lock audit sbom man dist cluster-up cluster-down clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

locks := $(wildcard requirements/*.lock)

.venv/.ready-run: pyproject.toml tools/setup.sh $(locks)
	@tools/setup.sh run

.venv/.ready-docs: pyproject.toml tools/setup.sh $(locks)
	@tools/setup.sh docs

.venv/.ready-lint: pyproject.toml tools/setup.sh $(locks)
	@tools/setup.sh lint

.venv/.ready-test: pyproject.toml tools/setup.sh $(locks)
	@tools/setup.sh test

.venv/.ready-lock: tools/setup.sh
	@tools/setup.sh lock

.venv/.ready-gpu: pyproject.toml tools/setup.sh $(locks)
	@tools/setup.sh gpu

demo: .venv/.ready-run
	$(bin)/dslaunch run clusters/local.yaml examples/train_ddp.py

# Lint beside the installation of torch and DeepSpeed, each of which takes one CPU. Then all tests at
# once: those of the testbed wait half of their time, while the others use the CPUs.
test: .venv/.ready-lint
	@$(MAKE) --no-print-directory --jobs=2 --output-sync .venv/.ready-test lint compiled
	$(pytest) -n $(workers) -m "not gpu and not long" $(PYTEST)

test-all: test
	$(pytest) -n $(workers) -m "long and not gpu" $(PYTEST)
	$(pytest) -n $(workers) -m "hypothesis and not sshd and not gpu" --hypothesis-profile=thorough $(PYTEST)
	$(bin)/python -m tests.testbed.chaos --seed $(SEED) --runs $(RUNS)

lint: .venv/.ready-lint
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mypy
	$(bin)/lint-imports --no-cache
	$(bin)/codespell $(texts)
	$(bin)/python -m tools.prose
	@if command -v shellcheck > /dev/null; then set -x; shellcheck $(scripts); \
	else echo "shellcheck is not installed: scripts not checked"; fi

# Compile the tests once: all workers begin at the same time, and each would compile all of them.
# What fails here fails again where it is reported.
compiled: .venv/.ready-lint
	-@$(bin)/python -m pytest --collect-only -qq > /dev/null

format: .venv/.ready-lint
	$(bin)/ruff check --fix .
	$(bin)/ruff format .

unit: .venv/.ready-test
	$(pytest) -n $(workers) -m "not sshd and not gpu and not long" $(PYTEST)

testbed: .venv/.ready-test
	$(pytest) -n $(workers) -m "sshd and not long" tests/testbed $(PYTEST)

hostile: .venv/.ready-test
	$(pytest) -n $(workers) tests/hostile --mutations $(MUTATIONS) $(PYTEST)

# one after the other: they measure the memory of the GPUs, and would take it from each other
gpu: .venv/.ready-gpu
	$(bin)/python -m pytest -q -m gpu --durations=5 $(PYTEST) tests/gpu

bench: .venv/.ready-test
	$(bin)/python -m benchmarks

# --strict: a link, an anchor or a page of the menu that does not exist is an error
docs: .venv/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(bin)/python -m mkdocs build --quiet --strict
	@echo "wrote build/site; to read it with the search: python3 -m http.server -d build/site"

reference: .venv/.ready-docs
	$(bin)/python -m tools.reference

pictures: .venv/.ready-run .venv/.ready-docs
	$(bin)/python -m tools.diagrams
	$(bin)/python -m tools.pictures

# UPGRADE=1 takes the newest versions, not only what pyproject.toml newly asks for
lock: .venv/.ready-lock
	@tools/lock.sh $(if $(UPGRADE),--upgrade)

audit: .venv/.ready-test
	$(bin)/python -m tools.audit $(AUDIT)

sbom: .venv/.ready-test
	@mkdir -p dist
	$(bin)/python -m tools.sbom dist/dslaunch.cdx.json

man: .venv/.ready-test
	$(bin)/python -m dslaunch.cli.man build/man

# what a release consists of; the same commit gives the same bytes
dist: export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2> /dev/null)
dist: .venv/.ready-test
	rm -rf dist
	$(bin)/python -m hatchling build
	@$(MAKE) --no-print-directory sbom
	@$(MAKE) --no-print-directory man
	tar --sort=name --mtime=@$${SOURCE_DATE_EPOCH:-0} --owner=0 --group=0 --numeric-owner \
	  -C build -cf - man | gzip -n > dist/dslaunch-man.tar.gz
	cd dist && sha256sum * > SHA256SUMS && cat SHA256SUMS

cluster-up: .venv/.ready-run
	@$(vcluster) up --nodes $(NODES)

cluster-down: .venv/.ready-run
	@$(vcluster) down

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist build
