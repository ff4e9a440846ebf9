"""Checkpoints: HDF5 files of many ranks that become one generation by their manifest, whole or absent.

Writing: `begin`, then `write_server` and `write_dense` on the ranks that hold the data, then `commit`, then `prune`.
Reading: `newest`, `Checkpoint.open`. Checking: `verify`. Everything here is local: who calls what when is the caller's.
"""

from hybridmpi.checkpoint.files import FileRecord
from hybridmpi.checkpoint.generations import begin, commit, newest, prune, step_directory
from hybridmpi.checkpoint.layout import TableShard
from hybridmpi.checkpoint.read import Checkpoint
from hybridmpi.checkpoint.verify import Damage, verify
from hybridmpi.checkpoint.write import write_dense, write_server

__all__ = [
    "Checkpoint",
    "Damage",
    "FileRecord",
    "TableShard",
    "begin",
    "commit",
    "newest",
    "prune",
    "step_directory",
    "verify",
    "write_dense",
    "write_server",
]
