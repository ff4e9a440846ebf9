#!/bin/bash
#
# Trains a job on several hosts, without a scheduler, and goes on from the newest checkpoint if there is one.
#
# The hosts see the same files, in folders of the same names, and ssh reaches each without a password:
#   ssh node2 true
#
#   jobs/mpirun/hosts.sh                  on one of them, in the folder that the paths below are relative to

# EDIT: the folder of the hybridmpi command, the job file, the hosts with the ranks of each (one of them will serve).
BIN=.venv/bin
JOB=jobs/lm.toml
HOSTS=node1:4,node2:4
RANKS=8

for host in ${HOSTS//,/ }; do
    if ! ssh -o BatchMode=yes -o ConnectTimeout=10 "${host%:*}" test -x "$PWD/$BIN/hybridmpi"; then
        echo "${host%:*} cannot be reached by ssh without a password, or sees no $PWD/$BIN/hybridmpi" >&2
        exit 2
    fi
done
exec "$BIN/hybridmpi" launch -n "$RANKS" --hosts "$HOSTS" -- train "$JOB" --resume "$@"
