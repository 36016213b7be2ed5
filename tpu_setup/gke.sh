#!/usr/bin/env bash
# The same on Google Kubernetes Engine, through xpk (`pip install xpk`, gcloud, kubectl, docker).
#
#   gke.sh cluster | run [--config.KEY=VALUE …] | status | stop | delete [--yes]      [--dry-run]
#
# cluster  makes CLUSTER with SLICES slices of TYPE and the bucket of WORKDIR mounted; billed until `gke.sh delete`
# run      sends REF of REPO as an image and trains on all hosts; after a failure the job starts again, and goes on
#          from its checkpoint; a config that is refused (status 2) ends it
# Needs CLUSTER, PROJECT, ZONE; TYPE, WORKDIR for cluster; NAME, TYPE, REPO, REF, CONFIG, WORKDIR for run (env.sh).
set -euo pipefail
# shellcheck source=tpu_setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

options "$@"
[ ${#ARGS[@]} -gt 0 ] || refuse "say what: cluster, run, status, stop or delete; see gke.sh --help"
verb=${ARGS[0]} ARGS=("${ARGS[@]:1}")
need CLUSTER PROJECT ZONE
gke() { run xpk "$1" "$2" "--cluster=$CLUSTER" "--project=$PROJECT" "--zone=$ZONE" "${@:3}"; }
size=("--tpu-type=$TYPE" "--num-slices=$SLICES")

case $verb in
  cluster)
    only && need TYPE WORKDIR
    gke cluster create "${size[@]}" "$([ "$SPOT" = 1 ] && echo --spot || echo --on-demand)"
    bucket=$(bucket)
    [ -z "$bucket" ] || gke storage attach "$bucket" --type=gcsfuse "--bucket=$bucket" "--mount-point=/mnt/$bucket" \
      --size=1 --readonly=false --auto-mount=true
    ;;
  run)
    need NAME TYPE REPO REF CONFIG WORKDIR
    config_keys
    bucket >/dev/null
    install="pip install -q --require-hashes -r requirements.lock && pip install -q --no-deps -e . && pip install -q 'jax[tpu]'"
    train=$(quoted rlvr train --quiet "--config=$CONFIG" "--workdir=$(directory)" --distributed \
      ${ARGS[@]+"${ARGS[@]}"})
    sent=$(mktemp -d)/rlvr # a clean one: xpk sends all that lies in the folder
    run git clone --quiet "$REPO" "$sent"
    run git -C "$sent" checkout --quiet "$REF"
    gke workload create "--workload=$NAME" "${size[@]}" --base-docker-image=python:3.12 "--script-dir=$sent" \
      --max-restarts=50 --restart-on-exit-codes=1,75,76,77 "--command=$install && $train"
    ;;
  status) only && gke workload list ;;
  stop) only && need NAME && gke workload delete "--workload=$NAME" ;;
  delete)
    only --yes
    given --yes || [ -n "$DRY" ] || [ -t 0 ] || refuse "deletes the cluster $CLUSTER; say --yes"
    if given --yes; then gke cluster delete --force; else gke cluster delete; fi # xpk asks
    ;;
  *) refuse "unknown '$verb'; cluster, run, status, stop or delete" ;;
esac
