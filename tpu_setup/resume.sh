#!/usr/bin/env bash
# After a preemption: makes the slice again if it is gone, waits for it, installs, and runs the same WORKDIR, which
# goes on from its last checkpoint. A slice that is there is kept.
#
#   resume.sh [--dry-run] [--config.KEY=VALUE …]      (the same keys as run.sh was given)
#
# Needs NAME, PROJECT, ZONE, TYPE, REPO, CONFIG, WORKDIR (env.sh). In a loop it keeps a spot slice at work:
#   while sleep 300; do ./status.sh || ./resume.sh; done
set -euo pipefail
# shellcheck source=tpu_setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

options "$@"
config_keys
need NAME PROJECT ZONE TYPE REPO CONFIG WORKDIR

if [ -n "$DRY" ]; then
  echo "# where the slice or its request has ended:"
  "$HERE/delete.sh" --dry-run
  echo "# where there is none (any more):"
  "$HERE/create.sh" --wait --dry-run
  echo "# in any case:"
else
  request=- slice=$(state_of tpu-vm)
  [ "$QUEUED" = 0 ] || request=$(state_of queued-resources)
  echo "$NAME: request $request, slice $slice"
  case $request/$slice in
    */READY) ;; # there: only the run is started
    ABSENT/ABSENT | -/ABSENT) "$HERE/create.sh" --wait ;;
    FAILED/* | SUSPEND*/* | */PREEMPTED | */TERMINATED | */STOPPED | ACTIVE/ABSENT)
      "$HERE/delete.sh" --yes # a request that has ended is in the way of a new one of its name
      "$HERE/create.sh" --wait
      ;;
    *) "$HERE/status.sh" --wait ;; # on its way
  esac
fi
"$HERE/install.sh" ${DRY:+--dry-run}
"$HERE/run.sh" ${DRY:+--dry-run} ${ARGS[@]+"${ARGS[@]}"}
