# shellcheck shell=bash disable=SC2034
# What every script here works on. Edit this file, or set a variable in the environment, which wins:
#   NAME=rlvr-2 TYPE=v6e-64 ./create.sh --dry-run
NAME=${NAME-}        # of the slice, and of its request in the queue, such as rlvr-1
PROJECT=${PROJECT-}  # the Google Cloud project, such as my-project
ZONE=${ZONE-}        # where your quota is, such as us-west4-a
TYPE=${TYPE-}        # generation and size: v5litepod-8, v5litepod-64, v6e-64 (chips); v4-32, v5p-128 (cores, 2 a chip)
RUNTIME=${RUNTIME-}  # software of the machines; empty: the usual one of the generation
SPOT=${SPOT-1}       # 1: cheaper, and taken away when others pay more; 0: on demand
QUEUED=${QUEUED-1}   # 1: wait in the queue for room (queued resource); 0: now or not at all (plain TPU VM)

REPO=${REPO-}        # git URL of this project that the machines can read, or a checkout here, which is sent to them
REF=${REF-main}      # branch, tag or commit
CONFIG=${CONFIG-}    # what to train, such as configs/pod.py:dr_grpo
WORKDIR=${WORKDIR-}  # the run's directory, seen by all machines and kept after them, such as gs://my-bucket/runs/a
RESTARTS=${RESTARTS-3}  # how often a worker starts a training again that failed (not one that was refused)

CLUSTER=${CLUSTER-}  # GKE only: the cluster, such as rlvr-cluster
SLICES=${SLICES-1}   # GKE only: slices of TYPE
POLL=${POLL-60}      # seconds between two looks at the queue
