#!/usr/bin/env bash
# Deletes the slice and its request; asks first. What WORKDIR holds is kept; what is on the machines alone is lost.
#
#   delete.sh [--yes] [--dry-run]
#
# --yes   without asking
# Needs NAME, PROJECT, ZONE (env.sh). Until it is deleted a slice is billed, whether it computes or not.
set -euo pipefail
# shellcheck source=tpu_setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

options "$@"
only --yes
need NAME PROJECT ZONE

if [ -z "$DRY" ] && ! given --yes; then
  [ -t 0 ] || refuse "deletes $NAME in $ZONE; say --yes"
  read -rp "Delete $NAME in $ZONE of $PROJECT? [y/N] " answer
  [[ $answer == [yY]* ]] || refuse "nothing was deleted"
fi
if [ "$QUEUED" = 0 ]; then
  tpu tpu-vm delete --quiet
else
  tpu queued-resources delete --force --quiet # the slice with its request
fi
