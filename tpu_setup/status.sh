#!/usr/bin/env bash
# Shows the request in the queue (QUEUED=1), the slice, and what each worker does.
#
#   status.sh [--wait] [--dry-run]
#
# --wait     returns when the slice is READY; with an error when it will not be
# Needs NAME, PROJECT, ZONE (env.sh).
set -euo pipefail
# shellcheck source=tpu_setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

options "$@"
only --wait
need NAME PROJECT ZONE

if [ -n "$DRY" ]; then
  [ "$QUEUED" = 0 ] || tpu queued-resources describe "--format=value(state.state)"
  tpu tpu-vm describe "--format=value(state)"
  on_workers all "rlvr/tpu_setup/worker.sh status"
  exit 0
fi

before=''
while :; do
  request=- slice=$(state_of tpu-vm)
  [ "$QUEUED" = 0 ] || request=$(state_of queued-resources)
  now="$NAME: request $request, slice $slice"
  [ "$now" = "$before" ] || echo "$now"
  before=$now
  [ "$slice" != READY ] || break
  case $request/$slice in
    ABSENT/* | -/ABSENT) echo "nothing is there; create.sh makes it" >&2 && exit 1 ;;
    FAILED/* | SUSPEND*/* | */PREEMPTED | */TERMINATED)
      echo "it will not come back; resume.sh makes a new one and goes on" >&2 && exit 1 ;;
  esac
  given --wait || exit 1
  sleep "$POLL"
done
given --wait || on_workers all "rlvr/tpu_setup/worker.sh status"
