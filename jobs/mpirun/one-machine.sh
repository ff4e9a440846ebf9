#!/bin/bash
#
# Trains a job on this machine, without a scheduler, and goes on from the newest checkpoint if there is one.
#
#   jobs/mpirun/one-machine.sh            here, in the folder that the paths below are relative to
#   nohup jobs/mpirun/one-machine.sh &    and log out
#
# Ctrl-C, or kill, lets it finish the step, write a checkpoint and end with status 75.

# EDIT: the folder of the hybridmpi command, the job file, the ranks (servers among them; they may exceed the cores).
BIN=.venv/bin
JOB=jobs/lm.toml
RANKS=3

exec "$BIN/hybridmpi" launch -n "$RANKS" -- train "$JOB" --resume "$@"
