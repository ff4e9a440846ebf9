"""Dense gradients in training: overlap, wires, algorithms and guards, on one node and on pretended ones."""

import time

import numpy as np

import hybridmpi as hm
from hybridmpi import nn, optim
from hybridmpi.collectives import ALGORITHMS
from hybridmpi.errors import HybridMPIError, NonFiniteError, RemoteError, UsageError
from hybridmpi.training.dense import DenseOptions

WIDTH, DEPTH, BATCH, STEPS = 24, 5, 12, 5


class Layers(nn.Module):
    """Linear layers with a tanh between them, squared error."""

    def __init__(self, width=WIDTH, dtype=np.float32):
        self.layers = [nn.Linear(width, width, dtype=dtype) for _ in range(DEPTH)]

    def loss(self, batch):
        x, targets = batch
        x = hm.autograd.Tensor(x)
        for layer in self.layers:
            x = hm.autograd.tanh(layer(x))
        difference = x - targets
        return (difference * difference).mean()


def batches(rank, ranks, scale=1.0, late=False):
    """This rank's rows of the same global batches: the first rank has one more than the others."""
    for step in range(STEPS):
        rng = np.random.default_rng(step)
        x, targets = rng.standard_normal((2, BATCH + 1, WIDTH)).astype(np.float32)
        places = slice(0, 1 + BATCH // ranks) if rank == 0 else slice(1 + rank * BATCH // ranks, None)
        if rank:
            places = slice(places.start, places.start + BATCH // ranks)
        if late and rank == step % ranks:
            time.sleep(0.005)
        yield x[places], targets[places] * np.float32(scale)


def train(comm, width, dense, model=Layers, late=False, scale=1.0, **options):
    """Return (losses, results, parameters of this rank) with `width` ranks on each pretended node; an error that all
    ranks raise is returned in place of it, for leaving the world with it would end all."""

    def main(world):
        results = []
        rank, ranks = world.compute.Get_rank(), world.compute.Get_size()
        try:
            trainer = hm.Trainer(world, model(), optim.SGD(0.2), dense=dense, **options)
            trainer.fit(batches(rank, ranks, scale, late), STEPS, results.append)
        except HybridMPIError as error:
            return error
        arrays = {name: array.copy() for name, array in trainer.dense_arrays()[0].items()}
        digests = world.gather(b"".join(array.tobytes() for array in arrays.values()))
        assert len(set(digests)) == 1, "the replicas differ"
        return [result.loss for result in results], results, arrays

    return hm.run(main, servers=0, comm=comm, nodes_of_ranks=lambda rank: rank // width)


def widths(comm):
    return sorted({1, 2, comm.Get_size()})


def check_overlap_changes_no_bits(comm):
    """Sums that begin during backward, late ranks and all: the bits of sums that begin after it."""
    for width in widths(comm):
        options = {"bucket_bytes": 3000, "first_bucket_bytes": 100, "algorithm": "auto" if width > 1 else "ring"}
        if width >= comm.Get_size():
            options["algorithm"] = "shared"
        losses, results, arrays = train(comm, width, DenseOptions(**options), late=True)
        expected, plain, expected_arrays = train(comm, width, DenseOptions(**options, overlap=False))
        assert losses == expected and len(set(losses)) == STEPS
        assert all(np.array_equal(arrays[name], expected_arrays[name]) for name in arrays)
        assert all(result.hidden_seconds == 0 for result in plain)
        if comm.Get_size() > 1:
            # The rank that comes last to a sum need not wait for it: not every rank has something under way.
            assert any(comm.allgather(any(result.hidden_seconds > 0 for result in results)))
            assert any(result.seconds["overlap"] > 0 for result in results)


def check_every_algorithm_trains_alike(comm):
    expected, _, _ = train(comm, comm.Get_size(), DenseOptions(algorithm="shared"))
    names = [n for n in ALGORITHMS if n != "mpi"] if comm.Get_size() > 1 else ["mpi"]
    for name in [*names, "mpi"]:
        losses, _, _ = train(comm, 1, DenseOptions(algorithm=name, bucket_bytes=3000))
        assert np.allclose(losses, expected, rtol=1e-5), (name, losses, expected)


def check_wires(comm):
    """Half the bits travel: the replicas stay equal, the losses close to those of float32."""
    algorithm = "ring" if comm.Get_size() > 1 else "auto"
    expected, full, _ = train(comm, 1, DenseOptions(algorithm=algorithm))
    for wire in ("bfloat16", "float16"):
        losses, results, _ = train(comm, 1, DenseOptions(wire=wire, algorithm=algorithm))
        assert np.allclose(losses, expected, rtol=2e-2), (wire, losses, expected)
        if comm.Get_size() > 1:
            assert losses != expected
            assert results[0].bytes["allreduce"] == full[0].bytes["allreduce"] / 2


def check_an_overflow_of_float16_is_found(comm):
    """Finite gradients whose sum is too large for the wire: no rank applies the step."""
    if comm.Get_size() == 1:
        return
    dense = DenseOptions(wire="float16")
    losses, results, _ = train(comm, 1, dense, scale=1e9, nonfinite="skip")
    assert all(result.skipped for result in results) and len(set(losses)) == STEPS
    error = train(comm, 1, dense, scale=1e9)
    assert isinstance(error, (NonFiniteError, RemoteError)), error
    assert "step 1" in str(error) and "float16" in str(error), error


def check_bfloat16_has_the_range(comm):
    _, results, _ = train(comm, 1, DenseOptions(wire="bfloat16"), scale=1e9)
    assert not any(result.skipped for result in results)


def check_different_models_are_refused(comm):
    """The last rank's layers are wider: all ranks hear which parameter it is, and nothing hangs."""
    if comm.Get_size() == 1:
        return
    last = comm.Get_rank() == comm.Get_size() - 1
    for other, expected in (
        (lambda: Layers(WIDTH + last), f"'layers.0.weight' float32 {WIDTH} x {WIDTH}"),
        (lambda: Layers(dtype=np.float64 if last else np.float32), "'layers.0.weight' float64"),
    ):
        error = train(comm, comm.Get_size(), DenseOptions(), model=other)
        assert isinstance(error, (UsageError, RemoteError)), error
        assert expected in str(error) and f"rank {comm.Get_size() - 1}" in str(error), error


def check_failed_steps_leave_nothing_behind(comm):
    """A rank fails in every third step, everybody catches it and goes on: as without those steps, bit for bit."""

    def main(world, failing):
        dense = DenseOptions(
            bucket_bytes=3000, first_bucket_bytes=100, algorithm="shared" if world.nodes == 1 else "ring"
        )
        trainer = hm.Trainer(world, Layers(), optim.SGD(0.2), dense=dense)
        rank, ranks = world.compute.Get_rank(), world.compute.Get_size()
        for number, batch in enumerate(batches(rank, ranks)):
            if failing:
                try:
                    trainer.train_step((batch[0][:, 1:] if rank == number % ranks else batch[0], batch[1]))
                except (HybridMPIError, ValueError):
                    pass
                else:
                    raise AssertionError("a step with a wrong batch was taken")
            trainer.train_step(batch)
        return {name: array.copy() for name, array in trainer.dense_arrays()[0].items()}

    for width in widths(comm):
        place = {"servers": 0, "comm": comm, "nodes_of_ranks": lambda rank, width=width: rank // width}
        expected = hm.run(lambda world: main(world, False), **place)
        found = hm.run(lambda world: main(world, True), **place)
        assert all(np.array_equal(found[name], expected[name]) for name in expected), width


def check_a_second_backward_is_refused(comm):
    class Twice(Layers):
        def loss(self, batch):
            super().loss(batch).backward()
            return super().loss(batch)

    error = train(comm, comm.Get_size(), DenseOptions(), model=Twice)
    assert isinstance(error, (UsageError, RemoteError)) and "second backward()" in str(error), error
    assert train(comm, comm.Get_size(), DenseOptions(overlap=False), model=Twice)[0]


def check_backward_between_steps_sums_nothing(comm):
    """A user may look at gradients between steps, on one rank alone."""

    def main(world, looking):
        trainer = hm.Trainer(world, Layers(), optim.SGD(0.2))
        for batch in batches(world.compute.Get_rank(), world.compute.Get_size()):
            trainer.train_step(batch)
            if looking and world.on_root():
                trainer.model.loss(batch).backward()
        return {name: array.copy() for name, array in trainer.dense_arrays()[0].items()}

    expected, found = (
        hm.run(lambda world, look=look: main(world, look), servers=0, comm=comm) for look in (False, True)
    )
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def check_the_model_outlives_its_trainer(comm):
    """Gradients lie in shared memory while a Trainer is there; afterwards they are the model's own."""

    def main(world):
        model = Layers()
        trainer = hm.Trainer(world, model, optim.SGD(0.2))
        batch = next(iter(batches(0, 1)))
        trainer.train_step(batch)
        trainer.close()
        for parameter in model.parameters():
            parameter.begin_step()
        model.loss(batch).backward()
        return float(sum(np.abs(parameter.grad).sum() for parameter in model.parameters()))

    assert hm.run(main, servers=0, comm=comm) > 0


def check_different_options_are_refused(comm):
    if comm.Get_size() > 1:
        last = comm.Get_rank() == comm.Get_size() - 1
        error = train(comm, 1, DenseOptions(algorithm="ring" if last else "halving_doubling"))
        assert isinstance(error, (UsageError, RemoteError)) and "algorithm='ring'" in str(error), error


def check_a_replica_that_drifts_is_named(comm):
    """One rank changes a value by itself: found in the same step, with the parameter's name."""
    if comm.Get_size() == 1:
        return

    class Drifting(Layers):
        def loss(self, batch):
            self.steps = getattr(self, "steps", 0) + 1
            if self.steps == 3 and comm.Get_rank() == comm.Get_size() - 1:
                self.layers[1].bias.data[2] += 1e-3
            return super().loss(batch)

    error = train(comm, comm.Get_size(), DenseOptions(check=True), model=Drifting)
    assert isinstance(error, HybridMPIError), error
    assert "step 3" in str(error) and f"'layers.1.bias' on rank {comm.Get_size() - 1}" in str(error), error


def check_wrong_options_are_refused(comm):
    error = train(comm, comm.Get_size(), DenseOptions(algorithm="ring"))  # which one node has not
    assert isinstance(error, UsageError) and "'ring' on 1 node" in str(error), error
    for options in ({"wire": "int8"}, {"algorithm": "butterfly"}, {"bucket_bytes": 0}):
        try:
            DenseOptions(**options)
        except UsageError as error:
            assert f"DenseOptions.{next(iter(options))} = " in str(error), error
        else:
            raise AssertionError(f"{options} were taken")
