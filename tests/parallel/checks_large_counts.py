"""What is larger than one call of MPI takes, by a limit that small models exceed: the same bits, under an MPI that
refuses what is larger."""

import itertools
import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest import mock

import numpy as np
from adversary.lazy import counting_to
from checks_sparse import spec

import hybridmpi as hm
from hybridmpi import large_counts, nn, optim
from hybridmpi.planning.modes import MODES
from hybridmpi.sparse import exchange
from hybridmpi.sparse.service import Service
from hybridmpi.waiting import wait_all
from hybridmpi.world import World

LIMIT = 1024
ROWS, DIM, WIDTH, EXAMPLES = 20_000, 4, 48, 200
STEPS, SAVED = 4, 2


@contextmanager
def limited(comm):
    """Yield a communicator that takes LIMIT bytes in a call, as hybridmpi is made to believe."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(large_counts, "LARGEST", LIMIT))
        # What goes in rounds anyway has room for no more.
        stack.enter_context(mock.patch.object(exchange, "LARGEST_SLOT", LIMIT))
        yield stack.enter_context(counting_to(comm, LIMIT))


class Both(nn.Module):
    """A table, of which a bit for each row is more than one call takes, and dense matrices larger than that."""

    def __init__(self):
        self.table = nn.Embedding(ROWS, DIM)
        self.first, self.second = nn.Linear(DIM, WIDTH), nn.Linear(WIDTH, WIDTH)

    def loss(self, batch):
        ids, targets = batch
        difference = self.second(hm.autograd.tanh(self.first(self.table(ids)))) - targets
        return (difference * difference).mean()


def batches(world, first):
    for step in range(first, STEPS):
        rng = np.random.default_rng([step, world.compute.Get_rank()])
        yield rng.integers(0, ROWS, EXAMPLES), rng.standard_normal((EXAMPLES, WIDTH)).astype(np.float32)


def train(comm, servers, apart, mode, path, algorithm):
    """Train, deal the table anew where owners have it, save, resume and train on; return losses and all values."""
    found = []

    def main(world):
        several = len({world.node_of[rank] for rank in world.clients}) > 1
        dense = hm.DenseOptions(algorithm=algorithm if several else "shared")
        sparse = hm.SparseOptions(pull_path=path, adapt_every=0)
        first, second = (
            hm.Trainer(world, Both(), optim.Adam(0.01), seed=seed, mode=mode, dense=dense, sparse=sparse)
            for seed in (1, 2)
        )
        losses = []
        first.fit(batches(world, 0), SAVED, lambda result: losses.append(result.loss))
        if mode in ("hybrid", "ps"):
            owners = len(world.owners)
            first.repartition("table", homes=[owners - 1, 0, owners // 2], kind="block")
        folder = world.from_root(tempfile.mkdtemp)
        first.save(folder)
        second.load(folder)
        for trainer in (first, second):
            trainer.fit(batches(world, SAVED), STEPS, lambda result: losses.append(result.loss))
            parameters, state = trainer.dense_arrays()
            arrays = [*parameters.values(), *(array for slot in state.values() for array in slot.values())]
            arrays += [table.pull(np.arange(table.rows)) for table in trainer.tables]
            found.append([array.copy() for array in arrays])
        found.append(losses)
        world.barrier()
        if world.on_root():
            shutil.rmtree(folder)

    hm.run(main, servers=servers, comm=comm, nodes_of_ranks=(lambda rank: rank) if apart else None)
    return found


def check_training_in_every_mode_is_the_same_bits(comm):
    algorithms = itertools.cycle(("ring", "halving_doubling", "recursive_doubling", "two_level"))
    cases = [(mode, "get", True) for mode in MODES] + [(mode, "message", True) for mode in ("hybrid", "ps")]
    cases = list(itertools.product(sorted({0, comm.Get_size() // 2}), cases))
    cases += [(comm.Get_size() // 2, (mode, "auto", False)) for mode in ("hybrid", "allreduce", "allgather")]
    for servers, (mode, path, apart) in cases:
        arguments = servers, apart, mode, path, next(algorithms)
        whole = train(comm, *arguments)
        with limited(comm) as narrow:
            pieces = train(narrow, *arguments)
        if not whole:
            continue  # a server
        assert pieces[-1] == whole[-1], (arguments, pieces[-1], whole[-1])
        for ours, theirs in zip(pieces[:-1], whole[:-1], strict=True):
            assert len(ours) == len(theirs) > 1, arguments
            assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True)), arguments


def check_values_that_all_hear(comm):
    with limited(comm) as narrow, World(0, narrow) as world:
        mine = bytes(range(256)) * (10 * (world.rank + 1))
        everybody = world.gather(mine)
        assert everybody == [bytes(range(256)) * (10 * (rank + 1)) for rank in world.clients]
        assert world.broadcast(mine) == everybody[0]
        assert world.gather(3) == [3] * len(world.clients)
        assert world.from_root(lambda: mine) == everybody[0]


def check_arrays_gathered_to_all(comm):
    """Ranks with nothing, with more than a call takes, and with just as much."""
    ranks, rank = comm.Get_size(), comm.Get_rank()
    for largest, dtype in itertools.product((0, 1, LIMIT // 8, LIMIT // 8 + 1, 1000), (np.int64, np.float64)):
        lengths = np.array([largest * (r % 3) // 2 for r in range(ranks)], np.int64)
        arrays = [np.arange(n).astype(dtype) + 1000 * r for r, n in enumerate(lengths.tolist())]
        with limited(comm) as narrow:
            everything = np.empty(lengths.sum(), dtype)
            wait_all(large_counts.begin_allgather(narrow, arrays[rank], everything, lengths))
        assert np.array_equal(everything, np.concatenate(arrays)), (largest, dtype)


def check_objects_between_two_ranks(comm):
    """Small and large ones in turn, whose pickled form is just below a limit, at it, and above."""
    values = [3, "x" * 100, *(bytes(n) for n in range(LIMIT - 60, LIMIT + 5)), list(range(5000)), None, "end"]
    with limited(comm) as narrow:
        for other in range(1, comm.Get_size()):
            for value in values if comm.Get_rank() in (0, other) else ():
                if comm.Get_rank() == 0:
                    large_counts.send_object(narrow, value, other, 7)
                else:
                    assert large_counts.receive_object(narrow, 0, 7) == value


def check_answers_of_servers(comm):
    """A server's answer of more than one call takes: the state of a dense parameter that lies there."""

    def main(world):
        service = Service.open(world, [spec("wide", 40, 200, "block", optim.Adam(0.1))])
        states = service.call("state", table=0)
        assert sum(len(state[slot]) for state in states for slot in state) == 2 * 40
        service.close()

    for servers in sorted({0, 1, comm.Get_size() - 1} & set(range(comm.Get_size()))):
        with limited(comm) as narrow:
            hm.run(partial(main), servers=servers, comm=narrow)
