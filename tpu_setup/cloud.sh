# What the scripts share: each command is shown before it runs; the slice and its workers; where the run's directory is.
# shellcheck shell=bash

quoted() { # words as a shell reads them back
  local word line=''
  for word; do
    case $word in
      '' | *[!A-Za-z0-9_./:=,@%+-]*) word="'${word//\'/\'\\\'\'}'" ;;
    esac
    line+=" $word"
  done
  printf '%s' "${line# }"
}

run() {
  printf '+ %s\n' "$(quoted "$@")"
  [ -n "$DRY" ] || "$@"
}

tpu() { run gcloud compute tpus "$1" "$2" "$NAME" "--zone=$ZONE" "--project=$PROJECT" "${@:3}"; }

on_workers() { # WORKER COMMAND: over ssh on worker 0, 1, … or all
  tpu tpu-vm ssh "--worker=$1" "--command=$2"
}

state_of() { # tpu-vm or queued-resources: the state in one word, ABSENT where there is none; other failures are passed on
  local said field=state
  [ "$1" = tpu-vm ] || field=state.state
  if said=$(gcloud compute tpus "$1" describe "$NAME" "--zone=$ZONE" "--project=$PROJECT" "--format=value($field)" 2>&1); then
    echo "${said##*$'\n'}"
  elif [[ $said == *NOT_FOUND* || $said == *"not found"* ]]; then
    echo ABSENT
  else
    echo "$said" >&2
    return 1
  fi
}

bucket() { # of WORKDIR=gs://BUCKET/PATH; empty where it is a directory that the workers have anyway (NFS)
  local path=${WORKDIR#gs://}
  case $WORKDIR in
    gs://?*/?*) echo "${path%%/*}" ;;
    gs://*) refuse "WORKDIR=$WORKDIR: names no directory; such as gs://my-bucket/runs/a" ;;
    /*) ;;
    *) refuse "WORKDIR=$WORKDIR: must be gs://BUCKET/PATH, or an absolute path of a file system that all workers share" ;;
  esac
}

directory() { # WORKDIR as the workers see it: a bucket is mounted, since a run needs files that grow
  case $WORKDIR in gs://*) echo "/mnt/${WORKDIR#gs://}" ;; *) echo "$WORKDIR" ;; esac
}
