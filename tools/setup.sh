#!/bin/bash
# Make the environment: setup.sh run | test. Does nothing that is done; two at once wait.
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:?run or test}
torch=${TORCH:-torch==2.13.0}
# the oldest that has a table of config keys (src/dslaunch/deepspeed/tables)
second_deepspeed=deepspeed==0.16.9
started=$SECONDS

# program -> Debian package. python3-venv is asked for by what it has, not by a program.
packages_test=(
  sshd:openssh-server ssh:openssh-client ip:iproute2 nft:nftables ps:procps pdsh:pdsh
  rsync:rsync shellcheck:shellcheck mpirun:openmpi-bin tcsh:tcsh fish:fish
  munged:munge slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client
  slurmdbd:slurmdbd mariadbd:mariadb-server-core
)
faketime=/usr/lib/$(uname -m)-linux-gnu/faketime/libfaketime.so.1

say() { echo "setup: $*" >&2; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.11 python3 python3.12 python3.13}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
      command -v "$candidate"
      return
    fi
  done
  say "needs Python 3.11 or newer (tried ${PYTHON:-python3.11, python3, python3.12, python3.13})"
  return 1
}

missing_packages() {
  local pair
  "$python" -c 'import ensurepip, venv' 2> /dev/null || echo python3-venv
  [ "$what" = test ] || return 0
  [ -e "$faketime" ] || echo libfaketime
  for pair in "${packages_test[@]}"; do
    PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" > /dev/null || echo "${pair##*:}"
  done
}

# a subshell, so that its trap is its own
install_packages() (
  policy=/usr/sbin/policy-rc.d
  # openssh-server would start its daemon on port 22 of this machine; this file says not to
  if [ -e "$policy" ]; then
    mv "$policy" "$policy.saved"
    trap 'mv "$policy.saved" "$policy"' EXIT
  else
    trap 'rm -f "$policy"' EXIT
  fi
  printf '#!/bin/sh\nexit 101\n' > "$policy"
  chmod 755 "$policy"
  apt_get install "$@" || { apt_get update && apt_get install "$@"; }
)

apt_get() {
  DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 --no-install-recommends \
    -y "$@" > .venv/.apt.log 2>&1 < /dev/null
}

system_packages() {
  local packages
  mapfile -t packages < <(missing_packages)
  [ ${#packages[@]} -gt 0 ] || return 0
  if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    say "installing ${packages[*]}"
    install_packages "${packages[@]}" && return
    tail -3 .venv/.apt.log >&2
  fi
  say "going on without ${packages[*]} (sudo apt-get install ${packages[*]})"
}

make_venv() {
  [ ! -x .venv/bin/pip ] || return 0
  local site=()
  # a torch that is there already, built for this machine's GPUs, is better than another
  if "$python" -c 'import torch' 2> /dev/null; then site=(--system-site-packages); fi
  say "making .venv with $python ${site[*]}"
  "$python" -m venv "${site[@]}" .venv
}

pip_install() {
  say "installing $*"
  # --no-compile: Python compiles what is imported, which is a small part of torch
  .venv/bin/python -m pip install -q --no-compile --root-user-action=ignore \
    --disable-pip-version-check "$@"
}

install() {
  pip_install hatchling editables setuptools wheel numpy
  .venv/bin/python -c 'import torch' 2> /dev/null || pip_install "$torch"
  if [ "$what" = run ]; then
    pip_install --no-build-isolation -e .
  else
    # beside torch's exact version, so that nothing asks for a bigger one
    DS_BUILD_OPS=0 pip_install --no-build-isolation -e '.[test,train]' \
      "torch==$(.venv/bin/python -c 'import torch; print(torch.__version__)')"
  fi
}

# A DeepSpeed beside the installed one, whose verdicts on configs are compared too. Nothing else
# needs it, so that a network that fails is said, and no more.
install_second_deepspeed() {
  local directory=.venv/deepspeed/${second_deepspeed#*==}
  [ ! -d "$directory/deepspeed" ] || return 0
  DS_BUILD_OPS=0 pip_install --no-deps --no-build-isolation --target "$directory" \
    "$second_deepspeed" || say "going on without $second_deepspeed: its tests are skipped"
}

mkdir -p .venv
exec 9> .venv/.lock
flock 9
if [ ".venv/.ready-$what" -nt pyproject.toml ] && [ ".venv/.ready-$what" -nt tools/setup.sh ]; then
  exit 0
fi
python=$(find_python)
system_packages
make_venv
install
[ "$what" = run ] || install_second_deepspeed
rm -f .venv/.apt.log
[ "$what" = run ] || touch .venv/.ready-run
touch ".venv/.ready-$what"
say "ready after $((SECONDS - started)) s"
