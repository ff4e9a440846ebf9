"""What ranks must do or draw alike is decided by one of them, or of what every processor rounds alike.

On rank 1 exp, log and powers give the neighbour of what they give elsewhere, as another library's may.
"""

import math
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest import mock

import checks_adaptive
import numpy as np
from checks_training import Regression

import hybridmpi as hm
from hybridmpi import optim
from hybridmpi.models.lm import LanguageModel
from hybridmpi.nn import LogUniform
from hybridmpi.planning import balance

FUNCTIONS = ("exp", "expm1", "log", "log1p", "log2", "log10", "pow", "power", "exp2")


def neighbour_of(function):
    """Return a function whose results are the next larger numbers."""

    def neighbour(*arguments, **options):
        found = function(*arguments, **options)
        if isinstance(found, np.ndarray):
            return np.nextafter(found, np.inf, out=found)
        return type(found)(np.nextafter(found, np.inf))

    return neighbour


@contextmanager
def other_library(comm):
    """Let rank 1 compute with another library of functions."""
    with ExitStack() as patches:
        for module in (math, np) if comm.Get_rank() == 1 else ():
            for name in FUNCTIONS:
                if hasattr(module, name):
                    neighbour = neighbour_of(getattr(module, name))
                    patches.enter_context(mock.patch.object(module, name, neighbour))
        yield


class Boundaries:
    """A generator whose numbers lie where one candidate ends and the next one begins."""

    def __init__(self, rows):
        with np.errstate(divide="ignore"):
            self.numbers = np.log(np.arange(1, rows + 1)) / np.log(rows + 1)

    def random(self, count):
        return np.resize(self.numbers, count)


def check_candidates_are_those_of_all_ranks(comm):
    for rows in (2, 7, 50, 5000, 1_000_003):
        boundaries = Boundaries(min(rows, 5000)) if rows <= 5000 else np.random.default_rng(rows)
        with other_library(comm):
            drawn = LogUniform(rows, 5000).draw(boundaries)
        everybody = comm.allgather(drawn.tobytes())
        assert all(found == everybody[0] for found in everybody), rows
        assert drawn.min() == 0 and drawn.max() < rows


def check_a_language_model_trains(comm):
    """With sampled softmax; what every rank holds stays the same in all bits."""

    def main(world):
        trainer = hm.Trainer(world, LanguageModel(60, 8, 8, 20), optim.Adam(0.01), mode="allreduce", clip=0.1)
        random = np.random.default_rng([1, world.compute.Get_rank()])

        def batches():
            while True:
                words = random.integers(0, 60, (4, 6))
                yield SimpleNamespace(inputs=words[:, :-1], targets=words[:, 1:], new_epoch=True, weight=20)

        trainer.fit(batches(), 5)
        arrays = [*trainer.dense_arrays()[0].values(), *(table.pull(np.arange(60)) for table in trainer.tables)]
        held = [np.ascontiguousarray(array).tobytes() for array in arrays]
        assert all(entry == held for entry in world.gather(held))

    hm.run(main, servers=0, comm=comm)  # compiles
    with other_library(comm):
        hm.run(main, servers=0, comm=comm)


def check_a_table_changes_its_way(comm):
    """Adaptation looks at floats of each rank; one of them decides."""
    if comm.Get_size() == 1:
        return
    place = {"nodes_of_ranks": lambda rank: rank}
    checks_adaptive.train(comm, 0, 0, **place)  # compiles
    with other_library(comm):
        checks_adaptive.train(comm, 0, checks_adaptive.LOOK, checks_adaptive.machine_of, **place)


def check_one_rank_decides_what_moves(comm):
    """Another rank's opinion of a balance does not count, nor is it asked for."""

    def refuse(*_, **__):
        raise AssertionError("decided on a rank that is not root")

    def main(world):
        trainer = hm.Trainer(world, Regression(40), optim.SGD(0.1), mode="ps")
        for parts in (4, 8):
            trainer.repartition("table", parts, [0] * parts)
            with mock.patch("hybridmpi.training.placement.propose", balance.propose if world.on_root() else refuse):
                assert "owners" in trainer.balance()
        return trainer.exchange.specs[0].homes

    homes = hm.run(main, servers=0, comm=comm)
    assert all(found == homes for found in comm.allgather(homes))
