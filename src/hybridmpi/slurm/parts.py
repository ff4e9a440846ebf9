"""The parts of a batch script that are the same in many, with the reason of each line."""

from __future__ import annotations

HEAD = """\
#!/bin/bash
#
# Trains {job} by Slurm: {what}{tasks}.
#
#   sbatch SCRIPT                       submit it, in the folder that the paths below are relative to
#   squeue --me                         see where it is; its output is in *-{id}.out, in the same folder
#   scancel --batch --signal=USR1 ID    write a checkpoint and go back into the queue
#   scancel ID                          end it, after a checkpoint if that takes no longer than Slurm waits
#   sbatch SCRIPT                       once more: go on from the newest checkpoint
#
# Four places to edit are marked EDIT. Written by:
#   {command}
"""

ASKED = """\
# EDIT 1: what Slurm is asked for. Lines with ## are off ("sinfo -s" lists partitions; ask your site for the account).
# requeue, open-mode and signal let the job start again: the signal goes to this script only, before the time is up.
"""

PLACES = """\
# EDIT 2: the folder of the hybridmpi command, the same on every node, and before it what it needs: module load ...
{prologue}BIN={bin}
"""

MPI = """\
# EDIT 3: how srun and the ranks' MPI meet: pmix for Open MPI, pmi2 for MPICH; "srun --mpi=list" shows what there is.
MPI={mpi}
"""

JOB = """\
# EDIT 4: the job file, what is different from it, and how often the job may start again by itself.
JOB={job}
RESTARTS={restarts}
"""

NO_TASK = '    *) echo "no task $SLURM_ARRAY_TASK_ID in this array" >&2; exit 2 ;;\n'

GREETING = """\
# From here on there is nothing to edit.

say() { echo "$(date '+%F %T') job $SLURM_JOB_ID: $*"; }
say "on $SLURM_JOB_NODELIST, restart ${SLURM_RESTART_COUNT:-0} of at most $RESTARTS"
if ! [ -x "$BIN/hybridmpi" ]; then
    say "no command $BIN/hybridmpi on $(hostname), in $PWD: set BIN in the script (EDIT 2)" >&2
    exit 2
fi
# What is set here reaches the ranks too, also where sbatch was told --export=NONE, which srun would take for itself.
export SLURM_EXPORT_ENV=ALL
"""

FABRIC = """\
# Without such a network Open MPI would search for one: starts take three times as long, each window prints an error.
if ! compgen -G '/sys/class/infiniband/*' > /dev/null && ! compgen -G '/sys/class/cxi/*' > /dev/null; then
{exports}fi
"""

CROWDED = """\
# Where a node has more ranks than cores, a rank that waits must let another run.
if [ "${{SLURM_NTASKS_PER_NODE:-1}}" -gt "$(getconf _NPROCESSORS_ONLN)" ]; then
{exports}fi
"""

_BEGIN = """\
# Each rank begins so: a signal that comes before Python listens must not kill it; as many threads as it has cores.
# shellcheck disable=SC2016  # the rank expands this, not the script
START='trap "" USR1 USR2 TERM
export OMP_NUM_THREADS="${OMP_NUM_THREADS-$SLURM_CPUS_PER_TASK}"
export NUMBA_NUM_THREADS="${NUMBA_NUM_THREADS-$SLURM_CPUS_PER_TASK}"
"""

START = (
    _BEGIN
    + """\
exec "$@"'
"""
)

START_TWICE = (
    """\
# With two components the default fence of Slurm 22.05's PMIx lets ranks out before all are in: MPI_Init crashes.
export SLURM_PMIX_FENCE="${SLURM_PMIX_FENCE-ring}"
# Where rank 0, which is on this node, leaves the status with which it ends: srun may not come to tell it (see below).
STATUS=$(mktemp)
export STATUS
"""
    + _BEGIN
    + """\
leave() { [ "$SLURM_PROCID" != 0 ] || echo "$1" > "$STATUS"; }
leave 137
"$@"
status=$?
leave "$status"
exit "$status"'
"""
)

_WHY = """\
# srun ends the others a minute after the first rank has ended, and not because one ended with a status: all end with 75
# when they stop after a checkpoint. Slurm does not hand --cpus-per-task on to srun.
"""

BY_SRUN = (
    _WHY
    + """\
COMMAND=(
    srun --mpi="$MPI" --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --kill-on-bad-exit=0 --wait=60
    sh -c "$START" rank "$BIN/hybridmpi" train "$JOB" --resume "${SETTINGS[@]}"
)
"""
)

BY_SRUN_TWICE = (
    _WHY
    + """\
# Both components are one world; the ranks of the first come first in it, and serve.
SETTINGS+=(--set "world.servers=[$(seq -s , 0 $((SLURM_NTASKS_HET_GROUP_0 - 1)))]")
RANK=(sh -c "$START" rank "$BIN/hybridmpi" train "$JOB" --resume "${SETTINGS[@]}")
COMMAND=(
    srun --mpi="$MPI" --kill-on-bad-exit=0 --wait=60
    --het-group=0 --cpus-per-task="${SLURM_CPUS_PER_TASK_HET_GROUP_0:-1}" "${RANK[@]}" :
    --het-group=1 --cpus-per-task="${SLURM_CPUS_PER_TASK_HET_GROUP_1:-1}" "${RANK[@]}"
)
"""
)

BY_MPIRUN = """\
# "launch" starts mpirun the way its MPI needs it, and hands signals on.
COMMAND=(
    "$BIN/hybridmpi" launch -n "$SLURM_NTASKS" -- train "$JOB" --resume "${SETTINGS[@]}"
)
"""

_ASK = """\
# Slurm's signal comes here, not to the ranks. They are asked again until they end: one may not have listened yet.
# TERM is of scancel: the job is not wanted any more.
ASKED=
CANCELLED=
RANKS=
trap 'ASKED=yes; kill -USR1 $RANKS 2> /dev/null' USR1 USR2
trap 'ASKED=yes; CANCELLED=yes; kill -USR1 $RANKS 2> /dev/null' TERM
(trap '' USR1 USR2 TERM && exec "${COMMAND[@]}") &
RANKS=$!
"""

_WAIT = """\
[ -n "$ASKED" ] || wait "$RANKS"
[ -z "$ASKED" ] || say "a signal: the ranks are asked for a checkpoint"
while [ -n "$ASKED" ] && sleep 2 && kill -USR1 "$RANKS" 2> /dev/null; do
    :
done
wait "$RANKS"
status=$?
"""

RUN = _ASK + _WAIT

RUN_TWICE = (
    _ASK
    + """\
# Of two components the srun of Slurm 22.05 may wait for a thread of its own for ever, after all their steps have ended.
end_srun() {
    local gone=0 steps
    while [ "$gone" -lt 2 ] && sleep 15; do
        [ -s "$STATUS" ] || continue
        steps=$(squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format=%i) || continue
        case $steps in
            *.[0-9]*) gone=0 ;;
            *) gone=$((gone + 1)) ;;
        esac
    done
    trap '' TERM
    say "all steps have ended, but srun has not: it is killed"
    kill -KILL "$RANKS" 2> /dev/null
}
end_srun &
WATCH=$!
"""
    + _WAIT
    + """\
kill "$WATCH" 2> /dev/null
if wait "$WATCH"; then
    status=$(cat "$STATUS")
fi
rm -f "$STATUS"
"""
)

END = """\
# 75: stopped by a signal after a checkpoint. Anything else but 0 is a failure, which another start would repeat.
if [ "$status" = 75 ] && [ -z "$CANCELLED" ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "$RESTARTS" ]; then
    say "back into the queue"
    scontrol requeue "$SLURM_JOB_ID" && exit 0
    say "Slurm does not take it back" >&2
fi
[ "$status" = 0 ] || say "ended with status $status$([ "$status" = 75 ] && echo '; submit it again to go on')" >&2
exit "$status"
"""
