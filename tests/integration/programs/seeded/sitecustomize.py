"""A seeded fault for `hybridmpi doctor`: windows in the user's own memory, which MPI reaches only through the target.

Python loads this at its start where PYTHONPATH names its folder; it changes the ranks of doctor and nothing else.
"""

import sys

if "hybridmpi.doctor.examination" in sys.orig_argv:
    import mpi4py

    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    import numpy as np
    from mpi4py import MPI

    create = MPI.Win.Create

    class Windows(MPI.Win):
        """Windows whose memory MPI did not allocate, whatever is asked for."""

        Allocate = staticmethod(lambda size, unit=1, comm=None: create(np.zeros(size, np.uint8), unit, comm=comm))

    MPI.Win = Windows
