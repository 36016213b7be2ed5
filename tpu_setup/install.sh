#!/usr/bin/env bash
# Installs the project on every worker of the slice: Python, the locked packages, libtpu, the checkout in ~/rlvr.
#
#   install.sh [--dry-run]
#
# Needs NAME, PROJECT, ZONE, REPO; REF (env.sh). REPO=.. sends the branch or tag REF of the checkout around this folder,
# for a repository that the machines cannot read. May be run again: it then installs what REF is now.
set -euo pipefail
# shellcheck source=tpu_setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

options "$@"
only
need NAME PROJECT ZONE REPO REF

from=$REPO
if [ -d "$REPO" ]; then
  from=rlvr.bundle
  bundle=$(mktemp -d)/rlvr.bundle
  run git -C "$REPO" bundle create --quiet "$bundle" "$REF"
  run gcloud compute tpus tpu-vm scp "$bundle" "$NAME:$from" "--zone=$ZONE" "--project=$PROJECT" --worker=all
fi

# The images come with an older Python than the project needs: uv brings one. The lock gives every worker the same
# versions, jax[tpu] the libtpu of its jax; workers that differ would compile different programs and hang.
on_workers all "set -eu
test -d rlvr || git init --quiet rlvr
git -C rlvr fetch --quiet --force $(quoted "$([ "$from" = "$REPO" ] || echo '../')$from" "$REF")
git -C rlvr checkout --quiet --force FETCH_HEAD
PATH=\$HOME/.local/bin:\$PATH
command -v uv >/dev/null || PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet --user uv
uv venv --quiet --allow-existing --python 3.12 rlvr-venv
uv pip install --quiet --python rlvr-venv --require-hashes -r rlvr/requirements.lock
uv pip install --quiet --python rlvr-venv --no-deps --editable rlvr
uv pip install --quiet --python rlvr-venv 'jax[tpu]'
echo \"\$(hostname): \$(git -C rlvr rev-parse --short HEAD)\""
