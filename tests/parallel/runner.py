"""Runs the checks of one module on every rank of an mpirun launch: python runner.py MODULE [CHECK ...].

A check is a function check_*(comm). All run in one launch, in the order of the file. A failure on any rank ends the
launch with the name of the check, the rank and the traceback.
"""

import importlib
import sys
import time
import traceback
from pathlib import Path


def main() -> None:
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
    from hybridmpi.world import load_mpi

    comm = load_mpi().COMM_WORLD
    module = importlib.import_module(sys.argv[1])
    wanted = sys.argv[2:]
    checks = {n: f for n, f in vars(module).items() if n.startswith("check_") and (not wanted or n in wanted)}
    for name, check in checks.items():
        started = time.perf_counter()
        try:
            check(comm)
        except BaseException:
            print(f"FAILED {name} on rank {comm.Get_rank()} of {comm.Get_size()}\n{traceback.format_exc()}", flush=True)
            comm.Abort(1)
        comm.Barrier()
        if comm.Get_rank() == 0:
            print(f"passed {name} {time.perf_counter() - started:.2f} s", flush=True)
    if comm.Get_rank() == 0:
        print(f"all {len(checks)} checks passed", flush=True)


if __name__ == "__main__":
    main()
