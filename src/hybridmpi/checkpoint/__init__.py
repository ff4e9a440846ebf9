"""Checkpoints: HDF5 files of many ranks that become one generation by their manifest, whole or absent.

Writing: `begin`, then `write_server` and `write_dense` on the ranks that hold the data, then `commit`, then `prune`.
`Behind` writes copies in a thread, `collect` waits for its files. Reading: `newest`, `candidates`, `Checkpoint.open`.
Checking: `verify`. Everything here is local: who calls what when is the caller's.
"""

from hybridmpi.checkpoint.behind import Behind, collect
from hybridmpi.checkpoint.files import FileRecord
from hybridmpi.checkpoint.generations import begin, candidates, commit, newest, prune, step_directory
from hybridmpi.checkpoint.layout import TableShard
from hybridmpi.checkpoint.read import Checkpoint
from hybridmpi.checkpoint.verify import Damage, verify
from hybridmpi.checkpoint.write import check_meta, write_dense, write_server

__all__ = [
    "Behind",
    "Checkpoint",
    "Damage",
    "FileRecord",
    "TableShard",
    "begin",
    "candidates",
    "check_meta",
    "collect",
    "commit",
    "newest",
    "prune",
    "step_directory",
    "verify",
    "write_dense",
    "write_server",
]
