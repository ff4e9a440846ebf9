"""The options that sbatch has, from Slurm 20 to 25, and what their values are.

`Value` names the form of a value: FLAG has none, MAYBE may have one, the others are checked by values.py. An option of
a newer Slurm is in the table too: an older sbatch says itself that it lacks it.
"""

from __future__ import annotations

from enum import Enum


class Value(Enum):
    """The form of an option's value."""

    FLAG = "no value"
    MAYBE = "a value or none"
    TEXT = "text"
    COUNT = "a whole number from 1 up"
    TIME = "a time"
    MEMORY = "an amount of memory"
    NODES = "a number of nodes"


_BY_VALUE = {
    Value.FLAG: (
        "consolidate-segments contiguous hold ignore-pbs no-requeue overcommit oversubscribe parsable quiet reboot "
        "spread-job spread-segments stepmgr test-only use-min-nodes verbose wait"
    ),
    Value.MAYBE: "exclusive get-user-env nice no-kill oom-kill-step propagate requeue resv-ports",
    Value.TEXT: (
        "account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container "
        "container-id cpu-freq deadline dependency distribution error exclude export export-file extra "
        "extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint "
        "input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem-bind network nodefile nodelist "
        "open-mode output partition power prefer priority profile qos reservation resources signal switches "
        "tres-bind tres-per-task uid wait-all-nodes wckey"
    ),
    Value.COUNT: (
        "core-spec cores-per-socket cpus-per-gpu cpus-per-task delay-boot mincpus ntasks ntasks-per-core "
        "ntasks-per-gpu ntasks-per-node ntasks-per-socket segment sockets-per-node thread-spec threads-per-core"
    ),
    Value.TIME: "time time-min",
    Value.MEMORY: "mem mem-per-cpu mem-per-gpu tmp",
    Value.NODES: "nodes",
}
OPTIONS = {name: value for value, names in _BY_VALUE.items() for name in names.split()}
"""sbatch's options by their long names, without the dashes."""

OURS = {
    "nodes": "--nodes",
    "ntasks": "--nodes and --ranks-per-node",
    "ntasks-per-node": "--ranks-per-node",
    "cpus-per-task": "--cpus-per-task",
    "time": "--time",
    "array": "--sweep and --at-once",
    "signal": "--warning",
    "requeue": "--restarts",
    "no-requeue": "--restarts 0",
    "open-mode": "nothing: output of a job that starts again is always appended",
}
"""What the script hangs on, by the option of `hybridmpi slurm render` that decides it."""

EVERYWHERE = ("account", "partition", "qos", "reservation")
"""What every component of a heterogeneous job is asked for with."""

_OF_NODES = (
    "constraint contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu distribution exclude exclusive "
    "extra-node-info gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint mem "
    "mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist ntasks-per-core ntasks-per-gpu "
    "ntasks-per-socket overcommit oversubscribe prefer reboot segment sockets-per-node spread-job switches thread-spec "
    "threads-per-core tmp tres-bind tres-per-task use-min-nodes"
)
OF_NODES = frozenset(_OF_NODES.split())
"""What concerns nodes: of a heterogeneous job those of the compute ranks."""
