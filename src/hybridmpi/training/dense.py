"""Dense gradients: buckets that are summed over the ranks while backward is still at work on earlier layers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hybridmpi import kernels
from hybridmpi.autograd import Parameter
from hybridmpi.collectives import AllReduce, Bucket, discover, layout
from hybridmpi.collectives.shared import room_for
from hybridmpi.collectives.summands import largest_summand, unfit_to_sum
from hybridmpi.collectives.tuning import calibrate
from hybridmpi.errors import UsageError
from hybridmpi.field_types import Count, Options, Wire
from hybridmpi.training.agreement import Announcement
from hybridmpi.world import World

Algorithm = Literal["auto", "shared", "mpi", "naive", "recursive_doubling", "halving_doubling", "ring", "two_level"]


@dataclass(frozen=True)
class DenseOptions(Options):
    """How dense gradients are summed.

    `wire`: the form in which they travel between nodes, "float32", "bfloat16" or "float16". `algorithm`: "auto", which
    measures, or the name of one. `bucket_bytes`: of the buffers that they are packed into, `first_bucket_bytes` of the
    one whose gradients come first, small for the first sum to begin early. `overlap`: whether sums begin during
    backward. `supernodes`: a host list for each group of hosts behind a slower trunk; () asks Slurm. `check`: for
    finding faults, compare every parameter between the ranks after every step.
    """

    wire: Wire = "float32"
    algorithm: Algorithm = "auto"
    bucket_bytes: Count = 4 << 20
    first_bucket_bytes: Count = 1 << 20
    overlap: bool = True
    supernodes: tuple[str, ...] = ()
    check: bool = False

    def open(self, world: World, nbytes: int) -> AllReduce:
        """Return an all-reduce with room for `nbytes` of buffers. Collective over compute."""
        return AllReduce(world, nbytes, discover(world, self.supernodes), self.wire, self.algorithm, self.check)


class DenseExchange:
    """The buckets of a model's dense parameters, and their sums. Collective over compute.

    `parameters`: (name, parameter), in the order in which the model uses them: gradients come in the opposite order,
    and so do the buckets. In a step: `begin_step`, backward, `end_backward`, `finish`; `progress` in every wait.
    `during` and `after`: seconds that this rank has spent on sums in backward and after it; `hidden`: how long sums
    were under way while backward went on; all of this step.
    """

    def __init__(self, world: World, parameters: Sequence[tuple[str, Parameter]], options: DenseOptions) -> None:
        self.world, self.options = world, options
        self._parameters = [parameter for _, parameter in parameters]
        shapes = [(name, p.shape, p.dtype) for name, p in reversed(parameters)]
        self.buckets = layout(shapes, options.bucket_bytes, options.first_bucket_bytes)
        self.allreduce = options.open(world, sum(room_for(bucket.values.nbytes) for bucket in self.buckets))
        for bucket in self.buckets:
            bucket.gradients = self.allreduce.allocate(bucket.values.size, bucket.dtype)
        self._bucket_of = {part.name: number for number, bucket in enumerate(self.buckets) for part in bucket.slices}
        self._attach()
        if options.overlap:
            for parameter in self._parameters:
                parameter.on_written = self._written
        calibrate(self.allreduce)
        self._reset()
        world.add_progress(self.progress)

    def _attach(self) -> None:
        """Make every parameter a view of its bucket, and so its gradient."""
        by_name = {parameter.name: parameter for parameter in self._parameters}
        for bucket in self.buckets:
            for part in bucket.slices:
                by_name[part.name].attach(bucket.view(bucket.values, part), bucket.view(bucket.gradients, part))

    def begin_step(self, weight: float, step: int, trainer: int) -> None:
        """Forget the last step's gradients, and tell the others how many examples this rank has in `step` of so
        manieth `trainer` of the world. Collective over compute; does not wait."""
        for parameter in self._parameters:
            parameter.begin_step()
        self._reset()
        self._weight, self._announcement = weight, Announcement(self.world, weight, step, trainer)
        self._in_backward = True

    def _reset(self) -> None:
        self._missing = [len(bucket.slices) for bucket in self.buckets]
        self._complete: set[Parameter] = set()
        self._waiting: list[int] = []  # buckets that are full, until all know how many examples there are
        self._share: float | None = None
        self._in_backward = False
        self.found: list[str] = []  # what is not finite, in words
        self.during = self.after = self.hidden = 0.0
        self._since: float | None = None

    def _written(self, parameter: Parameter) -> None:
        """Take note that backward is done with a parameter; start the bucket that this completes."""
        if not self._in_backward:
            return  # a backward of the user's own, between steps
        if parameter in self._complete:
            raise UsageError(
                f"a second backward() of this step reached parameter '{parameter.name}', whose gradient the ranks may "
                "be summing already: add the losses and go backward once, or set overlap = false"
            )
        self._complete.add(parameter)
        parameter.finish_step()
        number = self._bucket_of[parameter.name]
        self._missing[number] -= 1
        if not self._missing[number]:
            self._fill(number)
        self.progress()

    def _fill(self, number: int) -> None:
        """Look at a full bucket before others' values come to it, and queue it."""
        bucket = self.buckets[number]
        ranks = len(self.world.clients)
        if self._weight and kernels.count_beyond(bucket.gradients, largest_summand(bucket.dtype, ranks, mean=True)):
            for part in bucket.slices:
                if unfit := unfit_to_sum(bucket.view(bucket.gradients, part), part.name, ranks):
                    self.found.append(unfit)
        self._waiting.append(number)

    def progress(self) -> bool:
        """Start what is full, move on what is under way, without waiting; return whether there was anything. Local."""
        started = time.perf_counter()
        did = False
        if self._waiting and (self.options.overlap or not self._in_backward) and self._shares_known():
            for number in self._waiting:
                self.allreduce.start(self.buckets[number].gradients, self._share)
            self._waiting.clear()
            did = True
        did = self.allreduce.advance() or did
        now = time.perf_counter()
        if self._in_backward:
            self.during += now - started
            self._count_hidden(now)
        else:
            self.after += now - started
        return did

    def _shares_known(self) -> bool:
        if self._share is None and (total := self._announcement.total()) is not None:
            self._share = self._weight / total if total else 0.0
        return self._share is not None

    def _count_hidden(self, now: float) -> None:
        if self._since is not None:
            self.hidden += now - self._since
        self._since = now if self.allreduce.under_way else None

    def end_backward(self) -> None:
        """Complete the gradients: zeros where backward wrote nothing, also after it failed. Collective over compute;
        does not wait."""
        for parameter in self._parameters:
            parameter.finish_step()
        self._count_hidden(time.perf_counter())
        for number, missing in enumerate(self._missing):
            if missing or not self.options.overlap:
                self._fill(number)
        self._missing = [0] * len(self.buckets)
        self._in_backward = False

    def finish(self) -> None:
        """Wait for all sums of this step. Collective over compute."""
        started, before = time.perf_counter(), self.after
        self.world.wait_until(self._shares_known)
        self.progress()
        self.allreduce.finish()
        self.after = before + time.perf_counter() - started

    @property
    def may_overflow(self) -> bool:
        """Whether a sum can leave the range of the wire, float16's, so that it must be known before rows are pushed."""
        return self.options.wire == "float16" and self.allreduce.nodes > 1

    def overflowed(self) -> bool:
        """Return whether a finished sum is not finite though every rank's part was: float16 ends at 65504. Every rank
        has the same bits, so all return the same. Local."""
        return self.may_overflow and any(kernels.nonfinite_count(bucket.gradients) for bucket in self.buckets)

    def close(self) -> None:
        """Free the memory and the communicators. Collective over compute."""
        self.world.remove_progress(self.progress)
        # The model outlives the memory that the ranks share.
        for bucket in self.buckets:
            bucket.gradients = bucket.gradients.copy()
        self._attach()
        for parameter in self._parameters:
            parameter.on_written = None
        self.allreduce.close()


def named_views(
    buckets: Sequence[Bucket], states: Sequence[Mapping[str, np.ndarray]], slots: Sequence[str]
) -> tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]:
    """Return (values by name, state by slot and name) of the parameters in `buckets`, as views. Local.

    `states`: of each bucket, the optimiser's arrays by slot, as long as the bucket.
    """
    values: dict[str, np.ndarray] = {}
    state: dict[str, dict[str, np.ndarray]] = {slot: {} for slot in slots}
    for bucket, flat in zip(buckets, states, strict=True):
        for part in bucket.slices:
            values[part.name] = bucket.view(bucket.values, part)
            for slot, array in flat.items():
                state[slot][part.name] = bucket.view(array, part)
    return values, state
