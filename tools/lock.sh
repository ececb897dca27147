#!/bin/bash
# Write requirements/*.lock from pyproject.toml: lock.sh [--upgrade]. Without --upgrade, versions
# that still satisfy pyproject.toml are kept. Every file of each version is listed by its hash, for
# all platforms and all Python versions that pyproject.toml allows.
set -euo pipefail
cd "$(dirname "$0")/.."

# the oldest that has a table of config keys (src/dslaunch/deepspeed/tables)
oldest_deepspeed=0.16.9

# compile OUTPUT OPTION...: no header and no index options, which would name this machine's index
compile() {
  local output=requirements/$1
  shift
  echo "lock: $output" >&2
  .venv/bin/uv pip compile --quiet --system-certs --universal --python-version 3.11 \
    --generate-hashes --no-header --no-annotate --output-file "$output" "$@" > /dev/null
}

# torch: chosen by the machine. deepspeed: a source distribution, built apart against that torch.
compile test.lock pyproject.toml --extra test --extra train --group checkout \
  --no-emit-package torch --no-emit-package deepspeed "$@"
compile run.lock pyproject.toml --constraint requirements/test.lock "$@"
compile docs.lock --group docs --constraint requirements/test.lock "$@"
compile checkout.lock --group checkout --constraint requirements/test.lock "$@"
compile deepspeed.lock --no-deps "$@" - <<< "deepspeed"
compile deepspeed-oldest.lock --no-deps - <<< "deepspeed==$oldest_deepspeed"
