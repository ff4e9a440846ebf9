"""Runs the checks of modules on every rank of an mpirun launch: python runner.py checks_MODULE ... [check_NAME ...].

A check is a function check_*(comm). All run in one launch, in the order of the modules and of their files. A failure on
any rank ends the launch with the name of the check, the rank and the traceback. `--lazy SEED`: under an MPI that is as
late as it may be; `--storm SEED`: with ranks that are slow at the worst moments (adversary/).
"""

import argparse
import importlib
import sys
import time
import traceback
from pathlib import Path


def main() -> None:
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
    from hybridmpi.mpi_start import load_mpi

    parser = argparse.ArgumentParser()
    parser.add_argument("--lazy", type=int, metavar="SEED")
    parser.add_argument("--storm", type=int, metavar="SEED")
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    mpi = load_mpi()
    if options.lazy is not None or options.storm is not None:
        import adversary

        adversary.install(options.lazy, options.storm)
    comm = mpi.COMM_WORLD
    wanted = [name for name in options.names if name.startswith("check_")]
    modules = [importlib.import_module(name) for name in options.names if name not in wanted]
    found = [(name, f) for module in modules for name, f in vars(module).items() if name.startswith("check_")]
    checks = [(name, check) for name, check in found if not wanted or name in wanted]
    for name, check in checks:
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
