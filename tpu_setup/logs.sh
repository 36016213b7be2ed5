#!/usr/bin/env bash
# Shows the log of a worker.
#
#   logs.sh [--worker=0] [--lines=50] [--follow] [--dry-run]
#
# --worker=all  of all of them, one after the other; each has a log of its own, ~/rlvr-logs/HOST.log
# --follow      goes on until interrupted; the training does not notice
# Needs NAME, PROJECT, ZONE (env.sh).
set -euo pipefail
# shellcheck source=tpu_setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

options "$@"
need NAME PROJECT ZONE
worker=0 lines=50 follow=''
for argument in ${ARGS[@]+"${ARGS[@]}"}; do
  value=${argument#*=}
  case $argument in
    --worker=*) worker=$value ;;
    --lines=*) lines=$value ;;
    --follow) follow=' --follow' ;;
    *) refuse "unknown argument '$argument'; see logs.sh --help" ;;
  esac
done
[[ $worker == all || $worker =~ ^[0-9]+$ ]] || refuse "--worker=$worker: a number, or all"
[[ $lines =~ ^[0-9]+$ ]] || refuse "--lines=$lines: must be a number, such as 50"

on_workers "$worker" "rlvr/tpu_setup/worker.sh log $lines$follow"
