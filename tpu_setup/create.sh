#!/usr/bin/env bash
# Asks for a TPU slice: in the queue (QUEUED=1) or at once (QUEUED=0), spot (SPOT=1) or on demand (SPOT=0).
#
#   create.sh [--wait] [--dry-run] [-- FLAGS FOR GCLOUD]
#
# --wait     returns when the slice is there; a request in the queue may take minutes or days
# --dry-run  prints the commands and runs none
# Needs NAME, PROJECT, ZONE, TYPE (env.sh). Billed from READY until delete.sh.
#   create.sh -- --network=my-net --subnetwork=my-subnet       (a project without a default network)
set -euo pipefail
# shellcheck source=tpu_setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

own=() extra=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do own+=("$1") && shift; done
[ $# -eq 0 ] || extra=("${@:2}")
options ${own[@]+"${own[@]}"}
only --wait
need NAME PROJECT ZONE TYPE

case $TYPE in # cloud.google.com/tpu/docs/runtimes
  v2-* | v3-* | v4-*) usual=tpu-ubuntu2204-base ;;
  v5litepod-*) usual=v2-alpha-tpuv5-lite ;;
  v5p-*) usual=v2-alpha-tpuv5 ;;
  v6e-*) usual=v2-alpha-tpuv6e ;;
  *) refuse "TYPE=$TYPE: no TPU VM of that kind; such as v4-32, v5litepod-8, v5p-128, v6e-64 (TPU7x: GKE only, see gke.sh)" ;;
esac
for name in SPOT QUEUED; do
  [[ ${!name} == [01] ]] || refuse "$name=${!name}: must be 0 or 1"
done
[ "$SPOT" = 0 ] || extra=(--spot ${extra[@]+"${extra[@]}"})
extra=("--accelerator-type=$TYPE" ${extra[@]+"${extra[@]}"})

if [ "$QUEUED" = 0 ]; then
  tpu tpu-vm create "--version=${RUNTIME:-$usual}" "${extra[@]}"
  exit 0
fi
tpu queued-resources create "--node-id=$NAME" "--runtime-version=${RUNTIME:-$usual}" "${extra[@]}"
given --wait || { echo "# in the queue; status.sh says when it is ACTIVE" && exit 0; }
[ -z "$DRY" ] || { echo "# then waits until it is ACTIVE, looking every $POLL s" && exit 0; }
"$HERE/status.sh" --wait
