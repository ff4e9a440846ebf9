"""Programs that go wrong in the ways programs do: every rank hears so, by one message that names the ranks' places."""

import numpy as np

import hybridmpi as hm
from hybridmpi import optim
from hybridmpi.errors import HybridMPIError, OutOfStepError


class Pairs(hm.nn.Module):
    """A table and a layer: which number follows which."""

    def __init__(self):
        self.table = hm.nn.Embedding(20, 4)
        self.output = hm.nn.Linear(4, 20)

    def loss(self, batch):
        ids, targets = batch
        return hm.nn.cross_entropy(self.output(self.table(ids)), targets)


def batches(world, count):
    random = np.random.default_rng(world.rank)
    drawn = (random.integers(0, 20, 6) for _ in range(count))
    return [(ids, ids * 7 % 20) for ids in drawn]


def servers_of(comm):
    """Embedded, and with a server where there are enough ranks for two that compute beside it."""
    return (0, 1) if comm.Get_size() > 2 else (0,)


def refused(function):
    """Return the error that a call raises, which must be one of ours."""
    try:
        function()
    except HybridMPIError as error:
        return error
    raise AssertionError("nothing was refused")


def check_ranks_that_are_out_of_step_are_told_where_each_is(comm):
    """Each collective on root alone, while the others train, meet, or leave: all ranks say the same, and go on."""
    if comm.Get_size() == 1:
        return
    folder = "never-written"

    def main(world):
        trainer = hm.Trainer(world, Pairs(), optim.Adagrad(0.1))
        data = batches(world, 100)
        trainer.fit(data, 2)
        began = []
        alone = {
            "Trainer.save": lambda: trainer.save(folder),
            "Trainer.load": lambda: trainer.load(folder),
            "Trainer.saved": trainer.saved,
            "Trainer.balance": trainer.balance,
            "Trainer.repartition": lambda: trainer.repartition("table"),
            "Trainer.settle": trainer.settle,
            "Trainer.close": trainer.close,
            "Trainer(...)": lambda: hm.Trainer(world, Pairs(), optim.SGD(0.1)),
            "World.gather": lambda: world.gather("x" * 5000),
            "World.broadcast": lambda: world.broadcast("x" * 5000),
            "World.from_root": lambda: world.from_root(lambda: began.append(1)),
            "World.together": lambda: world.together(lambda: 1),
            "World.barrier": world.barrier,
        }
        elsewhere = {
            "Trainer.fit or train_step, step 3": lambda: trainer.fit(data, 4),
            "World.gather": lambda: world.gather(1),
            "Trainer.save": lambda: trainer.save(folder),
        }
        first, others = f"rank {world.clients[0]}", f"ranks {', '.join(map(str, world.clients[1:]))}"
        if len(world.clients) == 2:
            others = f"rank {world.clients[1]}"
        for name, there in elsewhere.items():
            for what, here in alone.items():
                if what == name:
                    continue
                error = refused(here if world.on_root() else there)
                assert isinstance(error, OutOfStepError), repr(error)
                for part in (f"{first} in {what}, at checks_misuse.py:", f"{others} in {name}, at checks_misuse.py:"):
                    assert part in str(error), (part, str(error))
        assert not began, "root did what the others were not there for"
        # In the middle of a step, and in what is done after it.
        error = refused(lambda: trainer.fit(data, 6, lambda result: world.barrier() if world.on_root() else None))
        assert f"{first} in World.barrier" in str(error) and "step 4" in str(error), error
        trainer.fit(data, 5)
        assert len(set(world.gather(trainer.step))) == 1

    for servers in servers_of(comm):
        hm.run(main, servers=servers, comm=comm)


def check_ranks_of_another_step_are_told_which(comm):
    """A rank that has done one step more, or steps another trainer."""
    if comm.Get_size() == 1:
        return

    def main(world):
        trainer, other = (hm.Trainer(world, Pairs(), optim.SGD(0.1)) for _ in range(2))
        (batch,) = batches(world, 1)
        trainer.train_step(batch)
        trainer.step += world.on_root()
        error = refused(lambda: trainer.train_step(batch))
        assert "train_step, step 3, at" in str(error) and "train_step, step 2, at" in str(error), error
        trainer.step = 1
        error = refused(lambda: (trainer if world.on_root() else other).train_step(batch))
        assert "step 2, at" in str(error) and "step 1 of trainer" in str(error), error
        other.train_step(batch)

    hm.run(main, servers=servers_of(comm)[-1], comm=comm)


def check_a_world_inside_a_world_with_servers_is_refused(comm):
    if comm.Get_size() < 3:
        return

    def main(world):
        assert "is open already" in str(refused(lambda: hm.run(lambda inner: 1, comm=comm)))

    hm.run(main, servers=1, comm=comm)
