#!/bin/bash
# Make the environment: setup.sh run | docs | lint | test | gpu | lock. Does nothing that is done; two
# at once wait. gpu is test without what only the other tests need: system packages, a second
# DeepSpeed. lint is the part of test that is there before torch and DeepSpeed.
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:?run, docs, lint, test, gpu or lock}
torch=${TORCH:-torch==2.13.0}
started=$SECONDS

# program -> Debian package. python3-venv is asked for by what it has, not by a program.
packages_lint=(shellcheck:shellcheck)
packages_test=(
  "${packages_lint[@]}"
  sshd:openssh-server ssh:openssh-client ip:iproute2 nft:nftables ps:procps pdsh:pdsh
  rsync:rsync mpirun:openmpi-bin tcsh:tcsh fish:fish
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
  local pair wanted=()
  "$python" -c 'import ensurepip, venv' 2> /dev/null || echo python3-venv
  case $what in
    lint) wanted=("${packages_lint[@]}") ;;
    test)
      wanted=("${packages_test[@]}")
      [ -e "$faketime" ] || echo libfaketime
      ;;
  esac
  for pair in "${wanted[@]}"; do
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
  say "continuing without ${packages[*]} (sudo apt-get install ${packages[*]})"
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
  # --no-compile: Python compiles what is imported, which is a small part of torch
  .venv/bin/python -m pip install -q --no-compile --root-user-action=ignore \
    --disable-pip-version-check "$@"
}

# Exactly the locked versions, and only files whose hash is listed. --no-deps: the lock is complete,
# but for torch.
install_locked() {
  pip_install --require-hashes --no-deps "$@" && return
  say "could not install the locked versions. If your package index does not have them, 'make lock'"
  say "writes the lock files for what it has. If a hash differs, the file is not the one that was"
  say "locked: find out why first."
  return 1
}

# A lock file of wheels. A source distribution would be built with packages that no lock lists.
install_wheels() {
  say "installing requirements/$1"
  install_locked --only-binary :all: -r "requirements/$1"
}

install_run() {
  install_wheels run.lock
  install_wheels checkout.lock
  install_torch
  install_checkout
}

# The documentation is made from the code, which is read from the checkout.
install_docs() {
  install_wheels run.lock
  install_wheels docs.lock
  install_wheels checkout.lock
  install_checkout
}

install_gpu() {
  install_wheels test.lock
  install_torch
  install_deepspeed deepspeed.lock
  install_checkout
}

install_lint() {
  install_wheels test.lock
  install_checkout
}

install_test() {
  if ! up_to_date lint; then install_lint; fi
  install_torch
  # beside the rest: it goes to a separate directory, and each DeepSpeed is built on one CPU
  install_second_deepspeed &
  install_deepspeed deepspeed.lock
  install_wheels docs.lock
  compile_imports
  wait $!
}

# Virtual nodes see this environment read-only: there, each process would compile all that it imports,
# 14 s of processor time for torch. What cannot be imported is for the tests to say.
compile_imports() {
  local modules="torch._dynamo, torch.distributed.run, accelerate.commands.launch"
  modules+=", deepspeed.launcher.launch, deepspeed.utils.zero_to_fp32, transformers.trainer"
  .venv/bin/python -c "import $modules" > /dev/null 2>&1 || true
}

# What tools/lock.sh needs. Not locked itself: it must be installable where the locked versions
# are not.
install_lock() {
  say "installing uv"
  pip_install "uv>=0.8"
}

install_checkout() {
  pip_install --no-deps --no-build-isolation -e .
}

# Not locked: which torch is right depends on the machine's GPUs, and the user can choose.
install_torch() {
  if .venv/bin/python -c 'import torch' 2> /dev/null; then return; fi
  say "installing $torch"
  pip_install "$torch"
}

# install_deepspeed LOCK OPTION...: a source distribution, built by what is installed already, since
# it reads the version of torch.
install_deepspeed() {
  say "installing requirements/$1"
  DS_BUILD_OPS=0 install_locked --no-build-isolation -r "requirements/$1" "${@:2}"
}

# A DeepSpeed beside the installed one, whose verdicts on configs are compared too. Nothing else
# needs it, so that a network that fails is said, and no more.
install_second_deepspeed() {
  local lock=deepspeed-oldest.lock version directory
  version=$(sed -n 's/^deepspeed==\([0-9.]*\).*/\1/p' "requirements/$lock")
  directory=.venv/deepspeed/$version
  [ ! -d "$directory/deepspeed" ] || return 0
  install_deepspeed "$lock" --target "$directory" \
    || say "continuing without DeepSpeed $version: its tests are skipped"
}

# up_to_date WHAT: whether this script, pyproject.toml and the lock files are older than its setup.
up_to_date() {
  local file
  for file in pyproject.toml tools/setup.sh requirements/*.lock; do
    [ ".venv/.ready-$1" -nt "$file" ] || return 1
  done
}

mkdir -p .venv
exec 9> .venv/.lock
flock 9
if up_to_date "$what"; then exit 0; fi
python=$(find_python)
system_packages
make_venv
"install_$what"
rm -f .venv/.apt.log
[ "$what" != test ] || touch .venv/.ready-{run,docs,lint,gpu}
[ "$what" != gpu ] || touch .venv/.ready-run
touch ".venv/.ready-$what"
say "ready after $((SECONDS - started)) s"
