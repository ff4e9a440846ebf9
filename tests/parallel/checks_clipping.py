"""Clipping by the norm of the whole gradient, against gradients computed densely, in plain numpy, on every rank."""

import itertools
import time
from types import SimpleNamespace

import numpy as np
from checks_sparse import SEED, Replica, on_world, server_counts, spec
from checks_training import examples_of, regress

import hybridmpi as hm
from hybridmpi import nn, optim
from hybridmpi.autograd import Parameter, Tensor
from hybridmpi.errors import NonFiniteError, RemoteError
from hybridmpi.sparse.norms import norm_of
from hybridmpi.sparse.service import Service
from hybridmpi.sparse.wire import HEADER_BYTES

RATE, LIMIT, STEPS = 0.1, 1.0, 8


def parts_of(step, ranks):
    """Deal 24 examples unequally; some ranks have none in some steps."""
    cuts = [0, *sorted(np.random.default_rng([step, ranks]).integers(0, 25, ranks - 1)), 24]
    return [slice(a, b) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]


def dense_descent(start, ranks, reduction):
    """Return (losses, arrays, scales) of steps of SGD on `Regression`, all gradients dense and all in one place."""
    table, weight, bias = (start[name].copy() for name in ("table", "linear.weight", "linear.bias"))
    losses, scales = [], []
    for step in range(STEPS):
        ids, targets = examples_of(step, 24)
        row_gradient, weight_gradient, bias_gradient = np.zeros_like(table), np.zeros_like(weight), np.zeros_like(bias)
        loss = 0.0
        for places in parts_of(step, ranks):
            i, y = ids[places], targets[places]
            if not len(i):
                continue
            share = len(i) / 24
            difference = table[i] @ weight.reshape(-1) + bias - y
            loss += share * (difference**2).mean()
            error = 2 * difference / len(i)
            weight_gradient += share * (error @ table[i]).reshape(weight.shape)
            bias_gradient += share * error.sum()
            scattered = np.zeros_like(table)
            np.add.at(scattered, i, error[:, None] * weight.reshape(1, -1))
            row_gradient += scattered if reduction == "sum" else share * scattered
        norm = np.sqrt(sum((g**2).sum() for g in (row_gradient, weight_gradient, bias_gradient)))
        scale = min(1.0, LIMIT / norm)
        for value, gradient in ((table, row_gradient), (weight, weight_gradient), (bias, bias_gradient)):
            value -= RATE * scale * gradient
        losses.append(loss)
        scales.append(scale)
    return losses, {"table": table, "linear.weight": weight, "linear.bias": bias}, scales


def check_equals_dense_clipping_in_one_process(comm):
    start = regress(comm, 0, lambda step, ranks: [None] * ranks)[1]
    cases = [(servers, reduction, "hybrid") for servers in server_counts(comm) for reduction in ("mean", "sum")]
    cases += [(server_counts(comm)[-1], "sum", mode) for mode in ("ps", "allreduce", "allgather")]
    for number, (servers, reduction, mode) in enumerate(cases):
        sparse = hm.SparseOptions(partition=("block", "cyclic")[number // 2 % 2])
        expected_losses, expected, scales = dense_descent(start, comm.Get_size() - servers, reduction)
        assert min(scales) < 0.9 and max(scales) == 1, scales  # some steps are clipped, some are not
        losses, arrays = regress(comm, servers, parts_of, reduction, clip=LIMIT, mode=mode, sparse=sparse)
        assert np.allclose(losses, expected_losses, rtol=1e-11), (servers, mode, losses, expected_losses)
        for name, array in expected.items():
            assert np.allclose(arrays[name], array, rtol=1e-10, atol=1e-13), (servers, mode, reduction, name)


def contributions_of(step, specs, clients):
    """Return every client's (weight, row gradients) of a step, the same on all ranks; some clients have none."""
    result = []
    for client in range(clients):
        rng = np.random.default_rng([SEED, step, client])
        gradients = []
        for table, s in enumerate(specs):
            count = 0 if (step + client + table) % 4 == 3 else rng.integers(0, s.rows + 1)
            ids = np.sort(rng.choice(s.rows, count, replace=False)).astype(np.int64)
            gradients.append((table, ids, rng.standard_normal((count, s.dim)).astype(s.dtype)))
        result.append((float(client + 1), gradients))
    return result


def clipped(specs, contributions, limit, squares):
    """Return (the contributions times the factor that limits the norm of their sums, that norm), in float64."""
    total = sum(weight for weight, _ in contributions)
    parts = [squares]
    for table, s in enumerate(specs):
        sums = np.zeros((s.rows, s.dim))
        for weight, gradients in contributions:
            _, ids, values = gradients[table]
            sums[ids] += (1.0 if s.reduction == "sum" else weight / total) * values
        parts.append((sums**2).sum())
    norm = np.sqrt(sum(parts))
    scale = min(1.0, limit / norm)
    return [(w, [(t, ids, scale * values) for t, ids, values in g]) for w, g in contributions], norm


def check_rows_of_every_rule_are_scaled_by_the_one_norm(comm):
    """Two tables, all optimisers with state: as a replica that is given gradients already clipped."""
    rules = (optim.SGD(0.1), optim.Momentum(0.1), optim.Adagrad(0.1), optim.Adam(0.01))

    def main(world, rule):
        specs = [spec("a", 40, 3, "cyclic", rule, "f8"), spec("b", 25, 2, "block", rule, "f8", "sum")]
        service, replica = Service.open(world, specs, norms=True), Replica(specs)
        me, client = world.compute.Get_rank(), service.client
        for step in range(5):
            contributions = contributions_of(step, specs, len(world.clients))
            limit, squares = (4.0, 1e6)[step % 2], 0.5 + step
            expected, norm = clipped(specs, contributions, limit, squares)
            client.push(contributions[me][1], contributions[me][0])
            found = client.clip(limit, [squares])
            assert np.isclose(found.value, norm, rtol=1e-13) and np.isclose(found.scale, min(1, limit / norm))
            assert len(set(world.gather((found.value, found.scale)))) == 1
            replica.step(step + 1, expected)
            for table, s in enumerate(specs):
                rows = client.pull(table, np.arange(s.rows))
                assert np.allclose(rows, replica.values[table], rtol=1e-10, atol=1e-13), (rule, step, s.name)
        service.close()

    for servers, rule in itertools.product(server_counts(comm), rules):
        on_world(comm, servers, lambda world, r=rule: main(world, r))


def check_a_limit_that_is_not_reached_changes_no_bit_and_is_counted(comm):
    def main(world):
        me, owners = world.compute.Get_rank(), len(world.owners)
        specs = [spec("t", 60, 5, "cyclic", optim.Adagrad(0.1))]
        plain = Service.open(world, specs)
        limited = Service.open(world, specs, norms=True)
        for step in range(3):
            weight, gradients = contributions_of(step, specs, len(world.clients))[me]
            for service in (plain, limited):
                service.client.push(gradients, weight)
            assert limited.client.clip(1e9, []).scale == 1
            everything = np.arange(60)
            assert np.array_equal(plain.client.pull(0, everything), limited.client.pull(0, everything))
        # 8 bytes from every owner, and on one client 8 bytes to every owner.
        scalars = limited.client.traffic.total("control") - plain.client.traffic.total("control")
        assert scalars == 3 * 8 * owners * (2 if world.on_root() else 1)
        limited.close()
        plain.close()
        empty = Service.open(world, [], norms=True)
        empty.client.push([], 1.0)
        assert (
            empty.client.clip(1.0, [9.0, 16.0]).scale == 0.2
            and empty.client.traffic.total("control") == HEADER_BYTES * owners
        )
        empty.close()

    for servers in server_counts(comm):
        on_world(comm, servers, main)


class Scaled(nn.Module):
    """A table whose rows' gradient is what the batch says, and a dense weight beside it."""

    def __init__(self):
        self.table = nn.Embedding(6, 1, ("constant", 0.0), reduction="sum", dtype=np.float64)
        self.linear = nn.Linear(1, 1, dtype=np.float64)

    def loss(self, batch):
        factor = batch[0]
        rows = self.table(np.array([4]))
        return (rows * factor).sum() + self.linear(rows).sum()


def check_a_norm_that_is_not_finite_drops_the_step_everywhere(comm):
    """1e200 has a finite sum and an infinite square: found by the owners, after the push."""

    def main(world, nonfinite):
        trainer = hm.Trainer(world, Scaled(), optim.Adam(0.1), clip=1.0, nonfinite=nonfinite)
        norms = trainer.service.client._norms
        tell = norms.tell

        def tell_late(scale):
            time.sleep(0.02)  # the others are at the next step when the owners hear of it
            tell(scale)

        norms.tell = tell_late
        results, error = [], None

        def rows():
            arrays = [a.copy() for a in trainer.dense_arrays()[0].values()] + [trainer.tables[0].pull(np.arange(6))]
            return [a.tobytes() for a in arrays]

        held = []
        try:
            for factor in (1.0, 1e200, 1e200, 2.0, 3.0):
                results.append(trainer.train_step(np.array([factor])))
                held.append(rows())
        except (NonFiniteError, RemoteError) as caught:
            error = str(caught)
            held.append(rows())
        everybody = world.gather((error, held))
        assert all(entry == everybody[0] for entry in everybody)
        if nonfinite == "skip":
            assert [result.skipped for result in results] == [False, True, True, False, False]
            assert held[0] == held[1] == held[2] != held[3] and trainer.service.client.pushed == 3
            again = hm.Trainer(world, Scaled(), optim.Adam(0.1), clip=1.0)
            for factor in (1.0, 2.0, 3.0):
                again.train_step(np.array([factor]))
            assert again.tables[0].pull(np.arange(6)).tobytes() == held[-1][-1]
        else:
            owner = 4 % len(world.owners)
            assert len(results) == 1 and held[0] == held[1] and trainer.skipped == 1
            assert "step 2: " in error and "the norm of the gradient, summed over the ranks, is inf" in error, error
            assert (
                f"rows at owner {owner} (rank {world.owners[owner]})" in error
                and "No rank has applied this step" in error
            ), error
            result = trainer.train_step(np.array([2.0]))  # and all can go on
            assert not result.skipped

    for servers, nonfinite in itertools.product(server_counts(comm), ("skip", "stop")):
        hm.run(lambda world, n=nonfinite: main(world, n), servers=servers, comm=comm)


def check_norm_of(comm):
    assert norm_of([9.0, 16.0], 1.0).scale == 0.2 and norm_of([9.0, 16.0], 5.0).scale == 1.0
    assert norm_of([], 1.0).scale == 1.0 and norm_of([0.0], 1.0).scale == 1.0
    for bad in (np.inf, np.nan):
        assert np.isnan(norm_of([1.0, bad], 1.0).scale)


class Apart(nn.Module):
    """A dense weight whose gradient is what the batch says, and a table of which a batch may touch nothing."""

    def __init__(self):
        self.table = nn.Embedding(6, 1, ("constant", 0.0))
        self.linear = nn.Linear(1, 1)

    def loss(self, batch):
        loss = self.linear(Tensor(batch.inputs)).mean()
        return loss + self.table(batch.ids).sum() if len(batch.ids) else loss


def check_a_step_left_out_after_its_sums_leaves_nothing_to_the_next(comm):
    """400,000 is too large for float16 in the dense sum; rows are gathered by then, and the next step has none."""

    def main(world):
        options = {"dense": hm.DenseOptions(wire="float16"), "modes": {"table": "allgather"}, "nonfinite": "skip"}
        trainer = hm.Trainer(world, Apart(), optim.SGD(0.1), clip=1.0, **options)
        some, none = np.arange(3), np.arange(0)
        across = len({world.node_of[rank] for rank in world.clients}) > 1
        steps = [(4e5, some), (1.0, none), (1.0, some)]
        skipped = []
        for number, (factor, ids) in enumerate(steps):
            batch = SimpleNamespace(inputs=np.full((4, 1), factor, np.float32), ids=ids, weight=4)
            skipped.append(trainer.train_step(batch).skipped)
            if across and number < 2:
                assert not trainer.tables[0].pull(np.arange(6)).any(), number
        assert skipped == [across, False, False] and trainer.tables[0].pull(np.arange(3)).all()

    hm.run(main, servers=0, comm=comm, nodes_of_ranks=lambda rank: rank)


class Steep(nn.Module):
    """Rows and a weight, all zeros, whose gradient on a rank is what its batch says."""

    def __init__(self, reduction):
        self.rows = nn.Embedding(5, 2, ("constant", 0.0), reduction)
        self.weight = Parameter((2,), ("constant", 0.0))

    def loss(self, batch):
        slopes = batch
        return (self.rows([1, 3]) * slopes).sum() + (self.weight * slopes[0]).sum()


def check_sums_of_what_is_finite_are_finite_or_refused(comm):
    """Each rank's gradient is finite, their sum is not: no row becomes infinite, whoever sums and whatever stops."""

    def main(world):
        ranks = world.compute.Get_size()
        for mode, reduction, nonfinite in itertools.product(
            ("hybrid", "ps", "allreduce", "allgather"), ("sum", "mean"), ("stop", "skip")
        ):
            trainer = hm.Trainer(world, Steep(reduction), optim.SGD(0.5), mode=mode, nonfinite=nonfinite)
            fits = 1.0e38 / ranks
            assert not trainer.train_step(np.full((2, 2), fits, np.float32)).skipped
            for slope in (3e38, 3.4e38):
                # Of one rank alone the sum is what it has.
                slopes = np.full((2, 2), -slope if ranks > 1 else -np.inf, np.float32)
                try:
                    assert trainer.train_step(slopes).skipped and nonfinite == "skip", (mode, reduction)
                except (NonFiniteError, RemoteError) as error:
                    assert nonfinite == "stop" and ranks > 1 and "may leave float32" in str(error) or ranks == 1, error
            expected = -0.5 * fits * np.array([ranks if reduction == "sum" else 1, 1], np.float32)
            rows, weight = trainer.model.rows([0, 1, 3]).data, trainer.model.weight.data
            assert not rows[0].any() and np.allclose(rows[1:], expected[0], rtol=1e-5), (mode, reduction, rows)
            assert np.allclose(weight, expected[1], rtol=1e-5), (mode, weight)
            trainer.close()

    hm.run(main, servers=min(1, comm.Get_size() - 1) if comm.Get_size() > 2 else 0, comm=comm)
