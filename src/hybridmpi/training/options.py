"""What the sections of a job say, as the options of a Trainer."""

from __future__ import annotations

from hybridmpi.sparse.cache import CacheOptions
from hybridmpi.training.dense import DenseOptions
from hybridmpi.training.job import Job
from hybridmpi.training.tables import SparseOptions


def sparse_options(job: Job) -> SparseOptions:
    """Return how rows lie and travel in the job: its [sparse]. Local."""
    section = job.sparse
    return SparseOptions(
        partition=section.partition,
        parts=section.parts,
        adapt_every=section.adapt_every,
        wire=section.wire,
        aggregate=section.aggregate,
        prefetch=section.prefetch,
        cache=CacheOptions(section.cache_rows, section.cache_policy, section.cache_staleness)
        if section.cache_rows
        else None,
    )


def dense_options(job: Job) -> DenseOptions:
    """Return how the job sums dense gradients: its [allreduce], and the supernodes of its [topology]. Local."""
    section = job.allreduce
    return DenseOptions(
        wire=section.wire,
        algorithm=section.algorithm,
        bucket_bytes=int(section.bucket_mb * (1 << 20)),
        first_bucket_bytes=int(section.first_bucket_mb * (1 << 20)),
        overlap=section.overlap,
        supernodes=job.topology.supernodes,
        check=section.check,
    )
