#!/usr/bin/env bash
# On each worker, over ssh: run.sh, status.sh and logs.sh call it.
#
#   worker.sh start COMMAND…   in the background, detached from the ssh session; output to ~/rlvr-logs/HOST.log
#   worker.sh status | stop | log [LINES] [--follow]
#   worker.sh mount BUCKET     at /mnt/BUCKET
set -euo pipefail
mkdir -p ~/rlvr-logs
log=~/rlvr-logs/$(hostname).log
pid=~/rlvr-logs/$(hostname).pid

alive() { [ -f "$pid" ] && grep -qs worker.sh "/proc/$(cat "$pid")/cmdline"; }

supervise() { # again after a failure: the workdir goes on from its checkpoint; status 2 is a config that was refused
  local restarts=${RESTARTS:-0} status=0
  trap 'restarts=0' TERM
  while :; do
    echo "--- $(date -u +%FT%TZ) $(hostname): $*"
    status=0
    "$@" || status=$?
    echo "--- $(date -u +%FT%TZ) $(hostname): ended with status $status"
    if [ "$status" -eq 0 ] || [ "$status" -eq 2 ] || [ "$restarts" -le 0 ]; then exit "$status"; fi
    restarts=$((restarts - 1))
    sleep "${PAUSE:-10}"
  done
}

case ${1-} in
  start)
    alive && { echo "$(hostname): already training (process $(cat "$pid")); stop it first with run.sh --stop" >&2; exit 3; }
    nohup setsid "$0" supervise "${@:2}" >>"$log" 2>&1 </dev/null &
    echo $! >"$pid"
    sleep "${SETTLE:-5}" # what is refused is refused at once: say so here, not only in the log
    kill -0 $! 2>/dev/null || wait $! || { status=$? && tail -n 20 "$log" >&2; exit "$status"; }
    echo "$(hostname): started, log $log"
    ;;
  supervise) supervise "${@:2}" ;;
  status)
    if alive; then echo "$(hostname): training, $(tail -n 1 "$log")"; else echo "$(hostname): not training, $(tail -n 1 "$log" 2>/dev/null)"; fi
    ;;
  stop)
    if alive; then kill -TERM -- "-$(cat "$pid")" && echo "$(hostname): told to stop"; else echo "$(hostname): not training"; fi
    ;;
  mount)
    mountpoint -q "/mnt/$2" && exit 0
    if ! command -v gcsfuse >/dev/null; then # github.com/GoogleCloudPlatform/gcsfuse, docs/installing.md
      key=/usr/share/keyrings/cloud.google.asc site=https://packages.cloud.google.com/apt
      curl -fsS $site/doc/apt-key.gpg | sudo tee $key >/dev/null
      echo "deb [signed-by=$key] $site gcsfuse-$(lsb_release -cs) main" | sudo tee /etc/apt/sources.list.d/gcsfuse.list >/dev/null
      sudo apt-get -qq update && sudo apt-get -qq install -y gcsfuse
    fi
    sudo install -d -o "$(id -u)" "/mnt/$2"
    # no cache of what was there a minute ago: workers wait for one another's files; checkpoints are renamed when whole
    gcsfuse --implicit-dirs --metadata-cache-ttl-secs=0 --rename-dir-limit=1000000 "$2" "/mnt/$2"
    ;;
  log) tail -n "${2:-50}" ${3:+--follow} "$log" ;;
  *) sed -n '2,6s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
