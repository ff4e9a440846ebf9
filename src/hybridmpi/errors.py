"""Every error that hybridmpi raises on purpose.

Each message says what happened, where (rank, table, step, file), what was expected and what to do next.
"""

STOPPED = 75
"""Exit code of a run that a signal stopped after a checkpoint: the batch system is to start it again."""


class HybridMPIError(Exception):
    """Base of all errors raised by hybridmpi; `exit_code` is what the command line ends with."""

    exit_code = 1


class UsageError(HybridMPIError):
    """A wrong argument, flag or job file: nothing was started."""

    exit_code = 2


class LaunchError(UsageError):
    """The ranks that MPI started cannot form the world that was asked for."""


class DataError(HybridMPIError):
    """Training data that is missing, empty, unreadable or too short."""

    exit_code = 2


class SparseIndexError(HybridMPIError, IndexError):
    """A row index outside its table."""

    exit_code = 2


class OutOfStepError(HybridMPIError):
    """Ranks that are in different collectives; all of them raise it."""


class NonFiniteError(HybridMPIError, ArithmeticError):
    """A loss or a gradient that is NaN or infinite."""


class CheckpointError(HybridMPIError):
    """A checkpoint that is missing, incomplete, damaged or made for another model."""


class DamageError(CheckpointError):
    """A checkpoint of which some byte is not what was written: another generation may be whole."""


class RemoteError(HybridMPIError):
    """An error that another rank raised; the text names that rank."""
