#!/bin/bash
#
# Trains a job until it is done: a run that a signal stopped, or that failed, starts again from its newest checkpoint.
#
#   jobs/mpirun/until-done.sh             in the folder that the paths below are relative to
#
# Ctrl-C, or kill, of this script: a checkpoint, and no further start.

# EDIT: the folder of the hybridmpi command, the job file, the ranks, the starts in all, seconds before the next one.
BIN=.venv/bin
JOB=jobs/lm.toml
RANKS=3
STARTS=10
PAUSE=10

ENDING=
RUN=
trap 'ENDING=yes; [ -z "$RUN" ] || kill -USR1 "$RUN" 2> /dev/null' INT TERM
for ((start = 1; start <= STARTS; start++)); do
    (trap '' INT TERM USR1 && exec "$BIN/hybridmpi" launch -n "$RANKS" -- train "$JOB" --resume "$@") &
    RUN=$!
    while kill -0 "$RUN" 2> /dev/null; do wait "$RUN"; done # a signal to this script ends only the wait
    wait "$RUN"
    status=$?
    # 0: done. 2: the job file, the data or the command line are wrong, which no further start would change.
    if [ "$status" = 0 ] || [ "$status" = 2 ] || [ -n "$ENDING" ]; then
        exit "$status"
    fi
    echo "start $start of at most $STARTS ended with status $status" >&2
    [ "$start" = "$STARTS" ] || sleep "$PAUSE"
done
exit "$status"
