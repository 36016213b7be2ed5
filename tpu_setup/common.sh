# What the scripts share: reading options, refusing what is missing or wrong.
# shellcheck shell=bash
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tpu_setup/env.sh
source "$HERE/env.sh"
# shellcheck source=tpu_setup/cloud.sh
source "$HERE/cloud.sh"
DRY='' ARGS=()

options() { # takes --help and --dry-run out of a script's arguments; the others are left in ARGS
  while [ $# -gt 0 ]; do
    case $1 in
      --help | -h) sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p;}' "$0" && exit 0 ;;
      --dry-run) DRY=1 ;;
      *) ARGS+=("$1") ;;
    esac
    shift
  done
}

refuse() {
  echo "${0##*/}: $*" >&2
  exit 2
}

need() { # the variables of env.sh that a script cannot do without
  local name
  for name; do
    [ -z "${!name}" ] || continue
    refuse "$name is not set: $(sed -n "s/^$name=[^#]*# *//p" "$HERE/env.sh"); set it in env.sh or as $name=… ${0##*/}"
  done
}

only() { # refuses arguments other than those named
  local argument known
  for argument in ${ARGS[@]+"${ARGS[@]}"}; do
    for known; do [ "$argument" != "$known" ] || continue 2; done
    refuse "unknown argument '$argument'; see ${0##*/} --help"
  done
}

config_keys() { # all arguments must be keys for rlvr
  local argument
  for argument in ${ARGS[@]+"${ARGS[@]}"}; do
    [[ $argument == --config.?*=* ]] || refuse "unknown argument '$argument'; config keys are --config.KEY=VALUE"
  done
}

given() { case " ${ARGS[*]-} " in *" $1 "*) return 0 ;; esac; return 1; }
