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


def train(world, optimizers, **options):
    """Return the losses of three steps by each of the optimisers in turn, with one Trainer."""
    trainer = hm.Trainer(world, Pairs(), optimizers[0], **options)
    data, losses = batches(world, 3), []
    for optimizer in optimizers:
        trainer.optimizer = optimizer
        assert trainer.optimizer == optimizer
        losses += [trainer.train_step(batch).loss for batch in data]
    trainer.settle()
    if world.on_root():  # at owners and in replicas, as in the trainer
        assert all(spec.optimizer == optimizers[-1] for spec in trainer.exchange.specs)
    moved = trainer.repartition("table", parts=1) if options.get("mode", "hybrid") in ("hybrid", "ps") else 0
    found = {name: array.copy() for name, array in trainer.dense_arrays()[0].items()}
    found["table"] = trainer.tables[0].pull(np.arange(20))
    assert moved >= 0
    trainer.close()
    return losses, found


def check_another_optimizer_of_the_same_kind_updates_everything(comm):
    """A rate so small that nothing moves any more shows who goes by it: dense values, rows at owners, replicas."""

    def main(world):
        for options in (
            {},
            {"mode": "ps"},
            {"mode": "allreduce"},
            {"mode": "allgather"},
            {"mode": "ps", "staleness": 1},
        ):
            rule, still = optim.Adam(0.1), optim.Adam(1e-30)
            _, before = train(world, [rule], **options)
            _, after = train(world, [rule, still], **options)
            _, further = train(world, [rule, rule], **options)
            same = options.get("staleness", 0) == 0 or len(world.clients) == 1
            for name, values in before.items():
                assert not same or np.array_equal(values, after[name]), (options, name)
                assert not np.array_equal(values, further[name]), (options, name)
        trainer = hm.Trainer(world, Pairs(), optim.SGD(0.1))
        for wrong in (optim.Adam(0.1), 0.1, None, optim.SGD):
            assert refused(lambda wrong=wrong: setattr(trainer, "optimizer", wrong))
        if len(world.clients) > 1:
            rates = optim.SGD(0.1 * (1 + world.rank))
            error = refused(lambda: setattr(trainer, "optimizer", rates))
            assert "set to different ones: rank 0: SGD(rate=0.1), rank 1: SGD(rate=0.2)" in str(error), error
        assert trainer.optimizer == optim.SGD(0.1)

    for servers in servers_of(comm):
        hm.run(main, servers=servers, comm=comm)


def check_a_model_has_one_trainer_at_a_time(comm):
    """What another Trainer has, or has trained, is refused by name; a model that is initialised again begins anew."""

    def main(world):
        model, data = Pairs(), batches(world, 3)
        first = hm.Trainer(world, model, optim.SGD(0.1))
        error = refused(lambda: hm.Trainer(world, model, optim.SGD(0.1)))
        assert "'output.bias', 'output.weight', 'table' belong to another Trainer" in str(error), error
        assert "close that one first" in str(refused(lambda: model.initialise(1)))
        losses = [first.train_step(batch).loss for batch in data]
        model.second = hm.nn.Embedding(5, 2)
        for call in (lambda: first.fit(data, 9), lambda: first.save("never-written")):
            assert "'second' is new since its Trainer was made" in str(refused(call))
        del model.second
        output, model.output = model.output, hm.nn.Linear(4, 20)
        assert "'output.bias' is another one" in str(refused(lambda: first.fit(data, 9)))
        model.output = output
        for name in ("model", "seed", "clip", "nonfinite", "world"):
            assert f"Trainer.{name} is fixed" in str(refused(lambda name=name: setattr(first, name, 2)))
        first.close()
        for call in (lambda: first.fit(data, 9), lambda: first.train_step(data[0]), first.settle, first.balance):
            assert "this Trainer is closed" in str(refused(call))
        error = refused(lambda: hm.Trainer(world, model, optim.SGD(0.1)))
        assert "were trained by a Trainer that is closed" in str(error) and "load" in str(error), error
        model.initialise(1)
        with_again = hm.Trainer(world, model, optim.SGD(0.1))
        assert [with_again.train_step(batch).loss for batch in data] == losses
        with_again.close()
        model.initialise(1)
        hm.Trainer(world, model, optim.SGD(0.1)).close()
        hm.Trainer(world, model, optim.SGD(0.1)).close()  # neither has trained: both drew the same

    for servers in servers_of(comm):
        hm.run(main, servers=servers, comm=comm)


class Says(Pairs):
    """Says what `said` is of the rows that it wants."""

    def __init__(self, said):
        super().__init__()
        self.said, self.again = said, self.table

    def rows_wanted(self, batch):
        return self.said(batch)


def check_what_a_model_wants_is_looked_at_wherever_it_runs(comm):
    def main(world):
        data = batches(world, 2)
        for said, words in (
            (lambda batch: {"tabel": batch[0]}, "no table is named 'tabel'; did you mean 'table'?"),
            (lambda batch: batch[0], "returned ndarray: expected a dict"),
            (lambda batch: None, "returned NoneType"),
            (lambda batch: {"table": batch[0] + 20}, "table '"),
        ):
            trainer = hm.Trainer(world, Says(said), optim.SGD(0.1))
            try:
                trainer.train_step(data[0])
            except (HybridMPIError, IndexError) as error:
                assert words in str(error) and "step 1" in str(error), (words, error)
            else:
                raise AssertionError(words)
            trainer.close()
        both = hm.Trainer(world, Says(lambda batch: {"again": batch[0], "table": batch[0][:1]}), optim.SGD(0.1))
        assert both.fit(data, 2).step == 2  # of one table by both of its names

    hm.run(main, servers=servers_of(comm)[-1], comm=comm)


def check_fit_that_has_nothing_to_do_says_so(comm):
    """It returns the last step's result, and warns, of steps that are done and of an iterator that is used up."""
    import warnings

    def main(world):
        trainer = hm.Trainer(world, Pairs(), optim.SGD(0.1))
        source = iter(batches(world, 3))
        assert trainer.fit(source, 2).step == 2
        for steps, words in ((2, "2 steps are done already"), (9, ""), (9, "no rank had a batch")):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                last = trainer.fit(source, steps)
            assert last.step == trainer.step == (2 if steps == 2 else 3)
            expected = bool(words) and world.on_root()
            assert len(caught) == expected and all(words in str(one.message) for one in caught), [*map(str, caught)]
            assert all(one.filename == __file__ for one in caught)

    hm.run(main, servers=0, comm=comm)


def check_trainers_made_and_closed_leave_no_memory(comm):
    """A closed Trainer's buffers of pushes alone are megabytes: of 30 of them next to nothing may be left."""
    from pathlib import Path

    def private():
        """Return the kilobytes of memory that are this process's alone."""
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))

    def main(world):
        before = 0
        for number in range(40):
            if number == 10:
                before = private()
            trainer = hm.Trainer(world, Pairs(), optim.SGD(0.1))
            trainer.fit(batches(world, 1), 1)
            trainer.close()
        grown = world.gather(private() - before)
        assert max(grown) < 8_000, f"{grown} kB"

    for servers in servers_of(comm):
        hm.run(main, servers=servers, comm=comm)
