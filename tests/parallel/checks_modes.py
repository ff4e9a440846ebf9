"""Every mode against one process: the same losses and parameters, the same bits on all ranks, bytes as the formulas."""

import itertools
import shutil
import tempfile

import numpy as np
from checks_training import RULES, Regression, alone, examples_of, model_of, regress, streams_for, train

import hybridmpi as hm
from hybridmpi import optim
from hybridmpi.errors import RemoteError, UsageError
from hybridmpi.planning.modes import MODES

EXCEPTIONS = ({"embedding": "allreduce", "lstm.*": "ps"}, {"*": "hybrid", "output": "allgather"}, {"output": "ps"})


def most_servers(comm):
    return sorted({0, min(2, comm.Get_size() - 1)})


def close(found, expected, where):
    losses, arrays = found
    assert np.allclose(losses, expected[0], rtol=1e-9), (where, losses, expected[0])
    assert arrays.keys() == expected[1].keys()
    for name, array in expected[1].items():
        assert np.allclose(arrays[name], array, rtol=1e-7, atol=1e-10), (where, name)


def check_every_mode_equals_one_process(comm):
    """Each optimiser in turn, so that a row that nobody touches keeps its moments in every mode; the norm of the whole
    gradient is limited, whoever has which part of it."""
    expected = {
        softmax: [alone(comm, softmax=softmax, rule=rule, clip=0.3) for rule in RULES]
        for softmax in ("full", "sampled")
    }
    cases = [(mode, {}) for mode in MODES] + [("allgather", e) for e in EXCEPTIONS[:1]] + [("ps", EXCEPTIONS[1])]
    for (number, (mode, modes)), servers in itertools.product(enumerate(cases), most_servers(comm)):
        softmax, rule = ("full", "sampled")[number % 2], number % len(RULES)
        for parts in (0, 1):
            found = train(
                comm,
                servers,
                softmax=softmax,
                rule=RULES[rule],
                mode=mode,
                modes=modes,
                clip=0.3,
                sparse=hm.SparseOptions(parts=parts),
            )
            close(found, expected[softmax][rule], (mode, modes, servers, parts, RULES[rule]))


def check_modes_between_nodes(comm):
    """Ranks that pretend to be on nodes of their own."""
    expected = alone(comm, softmax="sampled", dtype=np.float64)

    def main(world, mode):
        trainer = hm.Trainer(world, model_of("sampled"), RULES[2], mode=mode)
        losses = []
        trainer.fit((b if b.inputs.size else None for b in streams_for(world)), 6, lambda r: losses.append(r.loss))
        assert np.allclose(losses, expected[0], rtol=1e-9), (mode, losses)
        world.barrier()

    for mode, servers in itertools.product(MODES, most_servers(comm)):
        hm.run(lambda w, m=mode: main(w, m), servers=servers, comm=comm, nodes_of_ranks=lambda rank: rank // 2)


def check_unequal_examples_and_ranks_without_any(comm):
    def unequal(step, ranks):
        cuts = [0, *sorted(np.random.default_rng([step, ranks]).integers(0, 25, ranks - 1)), 24]
        return [slice(a, b) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]

    for reduction in ("mean", "sum"):
        expected = regress(comm, 0, unequal, reduction)
        for mode, servers in itertools.product(MODES, most_servers(comm)):
            if servers == 0:
                losses, arrays = regress(comm, servers, unequal, reduction, mode=mode)
                assert np.allclose(losses, expected[0])
                assert all(np.allclose(arrays[name], array) for name, array in expected[1].items())


def check_all_ranks_hold_the_same_bits(comm):
    def main(world, mode):
        trainer = hm.Trainer(world, model_of("sampled", np.float32), RULES[3], mode=mode)
        trainer.fit((b if b.inputs.size else None for b in streams_for(world)), 4)
        arrays = dict(trainer.dense_arrays()[0])
        arrays |= {table.name: table.pull(np.arange(table.rows)) for table in trainer.tables}
        everybody = world.gather({name: array.tobytes() for name, array in arrays.items()})
        assert all(mine == everybody[0] for mine in everybody)

    for mode in MODES:
        hm.run(lambda w, m=mode: main(w, m), servers=most_servers(comm)[-1], comm=comm)


def check_checkpoints_pass_between_modes(comm):
    """Three steps in one mode, three more in another, with the state of Adam: as six in one go."""
    folder = comm.bcast(tempfile.mkdtemp() if comm.Get_rank() == 0 else None)
    expected = alone(comm, rule=RULES[3])

    def first(world, mode):
        trainer = hm.Trainer(world, model_of("full"), RULES[3], mode=mode)
        trainer.fit((b if b.inputs.size else None for b in streams_for(world)), 3)
        trainer.save(f"{folder}/{mode}")
        world.barrier()

    def second(world, wrote, mode):
        trainer = hm.Trainer(world, model_of("full"), RULES[3], seed=2, mode=mode)
        trainer.load(f"{folder}/{wrote}")
        streams = streams_for(world)
        streams.position, losses = 3, []
        trainer.fit((b if b.inputs.size else None for b in streams), 6, lambda r: losses.append(r.loss))
        assert np.allclose(losses, expected[0][3:], rtol=1e-9), (wrote, mode, losses, expected[0])
        world.barrier()

    servers = most_servers(comm)[-1]
    for mode in MODES:
        hm.run(lambda w, m=mode: first(w, m), servers=servers, comm=comm)
    for number, (wrote, mode) in enumerate(itertools.product(MODES, MODES)):
        where = servers if number % 2 else 0
        hm.run(lambda w, a=wrote, b=mode: second(w, a, b), servers=where, comm=comm)
    comm.Barrier()
    if comm.Get_rank() == 0:
        shutil.rmtree(folder)


def check_bytes_of_every_mode(comm):
    """Counted bytes equal the formulas: pushes and pulls, gathered rows, whole sums."""
    rows, dim, itemsize = 20, 4, 8

    def main(world, mode):
        dense = hm.DenseOptions(algorithm="shared")
        trainer = hm.Trainer(world, Regression(rows, dim=dim), optim.SGD(0.1), mode=mode, dense=dense)
        ranks = len(world.clients)
        n = 3 + world.compute.Get_rank()
        result = trainer.train_step((np.arange(n), np.ones(n)))
        everybody = world.gather((n, result.bytes))
        table, linear = rows * dim * itemsize, (dim + 1) * itemsize
        served = linear if mode == "ps" else 0
        for touched, counted in everybody:
            if mode in ("hybrid", "ps"):
                assert counted["push_rows"] == touched * dim * itemsize + served
                assert counted["pull_rows"] == touched * dim * itemsize + served
                assert counted["push_ids"] == 8 * (touched + (2 if mode == "ps" else 0))
            else:
                assert counted["push_rows"] == counted["pull_rows"] == counted["push_ids"] == 0
            gathers = mode == "allgather"
            assert counted["gather_rows"] == gathers * (ranks - 1) * touched * dim * itemsize
            assert counted["gather_ids"] == gathers * (ranks - 1) * touched * 8
        dense_bytes = sum(bucket.gradients.nbytes for bucket in trainer.buckets)
        whole = dense_bytes + (table if mode == "allreduce" else 0)
        summed = sum(counted["allreduce"] for _, counted in everybody)
        assert summed == 2 * whole * (ranks - 1), (mode, summed)

    for mode, servers in itertools.product(MODES, most_servers(comm)):
        hm.run(lambda w, m=mode: main(w, m), servers=servers, comm=comm)


def check_models_that_differ_between_ranks_are_refused(comm):
    """A layer, or a table, of another size on the last rank: every rank hears of it, in every mode."""

    def main(world, mode, what):
        odd = world.compute.Get_rank() > 0
        model = Regression(21 if odd and what == "table" else 20, dim=5 if odd and what == "linear" else 4)
        try:
            hm.Trainer(world, model, optim.SGD(0.1), mode=mode)
        except (UsageError, RemoteError) as error:
            assert "the parameters differ between ranks" in str(error) and what in str(error), error
        else:
            assert len(world.clients) == 1
        world.barrier()

    for mode, what in itertools.product(("ps", "hybrid", "allgather"), ("table", "linear")):
        hm.run(lambda w, m=mode, t=what: main(w, m, t), servers=most_servers(comm)[-1], comm=comm)


def check_bytes_stay_counted_when_a_table_changes_its_way(comm):
    def main(world):
        trainer = hm.Trainer(world, Regression(), optim.SGD(0.1), mode="allreduce")
        trainer.train_step(examples_of(0, 6))
        before = trainer.traffic()
        trainer.exchange.change_ways({"table": "ps"})
        after = trainer.traffic()
        assert all(after[category] >= count for category, count in before.items()), (before, after)
        world.barrier()

    hm.run(main, servers=most_servers(comm)[-1], comm=comm)


def check_wrong_modes_are_refused(comm):
    def main(world):
        for options, text in (
            ({"mode": "hybird"}, 'Trainer.mode = "hybird" (a string); expected "hybrid" or "ps"'),
            ({"modes": {"table": "pc"}}, 'expected a dict from names to "hybrid" or "ps"'),
            (
                {"modes": {"tabel": "ps"}},
                "no parameter has such a name; the model has linear.weight, linear.bias, table",
            ),
            (
                {"sparse": lambda: hm.SparseOptions(parts=-1)},
                "parts = -1 (a whole number); expected a whole number, at least 0",
            ),
            ({"modes": {"linear.*": "allgather"}}, "dense parameters, without rows to gather"),
        ):
            try:
                made = {key: value() if callable(value) else value for key, value in options.items()}
                hm.Trainer(world, Regression(), optim.SGD(0.1), **made)
            except UsageError as error:
                assert text in str(error), error
            else:
                raise AssertionError(options)

    hm.run(main, servers=0, comm=comm)
