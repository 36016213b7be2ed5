#!/usr/bin/env bash
# Checks all workers with `rlvr doctor`, then starts `rlvr train` on all of them. The training goes on when the ssh
# session ends; where WORKDIR has a checkpoint of this config, it goes on from it. A bucket is mounted at /mnt.
#
#   run.sh [--dry-run] [--config.KEY=VALUE …]
#   run.sh --stop                                (SIGTERM to all workers)
#   run.sh --config.task="jsonl(train='my problems.jsonl')" --config.optimizer.learning_rate=3e-6
#
# Needs NAME, PROJECT, ZONE, CONFIG, WORKDIR; RESTARTS (env.sh).
set -euo pipefail
# shellcheck source=tpu_setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

options "$@"
need NAME PROJECT ZONE
if given --stop; then
  only --stop
  on_workers all "rlvr/tpu_setup/worker.sh stop"
  exit 0
fi
config_keys
need CONFIG WORKDIR
[[ $RESTARTS =~ ^[0-9]+$ ]] || refuse "RESTARTS=$RESTARTS: must be a number, such as 3"

bucket=$(bucket)
rlvr=../rlvr-venv/bin/rlvr
[ -z "$bucket" ] || on_workers all "rlvr/tpu_setup/worker.sh mount $(quoted "$bucket")"
what=("--config=$CONFIG" "--workdir=$(directory)" --distributed ${ARGS[@]+"${ARGS[@]}"})
on_workers all "cd rlvr && $(quoted $rlvr doctor "${what[@]}")"
on_workers all "cd rlvr && RESTARTS=$RESTARTS tpu_setup/worker.sh start $(quoted $rlvr train --quiet "${what[@]}")"
