"""A trainer's tables dealt anew, balanced, and found again by a resumed run: the same losses as without."""

import json
import shutil
import tempfile
from types import SimpleNamespace

import numpy as np
from checks_training import RULES, model_of, server_counts, streams_for

import hybridmpi as hm
from hybridmpi.errors import UsageError
from hybridmpi.training.partition_search import PartitionTuning
from hybridmpi.training.placement import at_owners


def run(comm, servers, between, steps=6, **options):
    """Train `steps` steps in float32 and call between(trainer, step) before each; return the losses on every rank."""

    def main(world):
        trainer = hm.Trainer(world, model_of("sampled", np.float32), RULES[3], **options)
        losses = []

        def after(result):
            losses.append(result.loss)
            between(trainer, result.step)

        between(trainer, 0)
        trainer.fit((b if b.inputs.size else None for b in streams_for(world)), steps, after)
        world.barrier()
        return losses

    result = hm.run(main, servers=servers, comm=comm)
    return comm.bcast(result, comm.allgather(result is not None).index(True))


def nothing(trainer, step):
    pass


def check_repartition_changes_no_loss(comm):
    for servers, mode in [*((s, "hybrid") for s in server_counts(comm)), (min(1, comm.Get_size() - 1), "ps")]:
        expected = run(comm, servers, nothing, mode=mode)

        def between(trainer, step):
            owners = len(trainer.world.owners)
            rng = np.random.default_rng(step)
            for spec in trainer.exchange.specs:
                parts = int(rng.integers(1, 3 * owners + 1))
                if step % 2:
                    trainer.repartition(spec.name, homes=rng.integers(0, owners, parts).tolist())
                else:
                    trainer.repartition(spec.name, parts=parts, kind=("block", "cyclic")[rng.integers(2)])

        found = run(comm, servers, between, mode=mode)
        assert found == expected, (servers, mode, found, expected)


def check_balance_moves_hot_parts(comm):
    """All parts at the first owner: they spread, the losses stay, and a second look finds nothing to gain."""
    for servers in server_counts(comm):
        expected, texts = run(comm, servers, nothing), []

        def between(trainer, step, texts=texts):
            owners = len(trainer.world.owners)
            if step == 0:
                for spec in trainer.exchange.specs:
                    trainer.repartition(spec.name, homes=[0] * (6 * owners), kind="cyclic")
            elif step % 2 == 0:
                texts.append(trainer.balance())
                held = np.array([answer["rows"] for answer in trainer.service.call("statistics")])
                assert (held.sum(axis=1) > 0).all()

        assert run(comm, servers, between) == expected
        texts = next(found for found in comm.allgather(texts) if found)
        owners = servers or comm.Get_size()
        assert texts[0].startswith("rows pushed: the most loaded"), texts
        if owners == 1:
            assert all("nothing to gain" in text for text in texts), texts
        else:
            assert f"has {owners:.2f} times the mean" in texts[0] and "parts move" in texts[0], texts


def check_a_resumed_run_finds_its_partition(comm):
    folder = comm.bcast(tempfile.mkdtemp() if comm.Get_rank() == 0 else None)
    servers = server_counts(comm)[-1]
    expected = run(comm, servers, nothing)

    def save(trainer, step):
        if step == 2:
            for name in ("embedding", "output"):
                owners = len(trainer.world.owners)
                trainer.repartition(name, homes=[owners - 1, 0, owners - 1], kind="block")
        if step == 4:
            trainer.save(folder, meta={"position": 4})

    run(comm, servers, save)
    for count in sorted({servers, 0}):

        def main(world, count=count):
            trainer = hm.Trainer(world, model_of("sampled", np.float32), RULES[3])
            names = [spec.name for spec in trainer.exchange.specs]
            trainer.load(folder)
            owners = len(world.owners)
            kinds = {name: trainer.exchange.specs[names.index(name)].homes for name in ("embedding", "output")}
            same = count == servers
            assert set(kinds.values()) == ({(owners - 1, 0, owners - 1)} if same else {None}), kinds
            streams, losses = streams_for(world), []
            streams.position = 4
            trainer.fit((b if b.inputs.size else None for b in streams), 6, lambda r: losses.append(r.loss))
            assert losses == expected[4:] if same else np.allclose(losses, expected[4:], rtol=1e-5)
            world.barrier()

        hm.run(main, servers=count, comm=comm)
    comm.Barrier()
    if comm.Get_rank() == 0:
        shutil.rmtree(folder)


def check_wrong_repartitions_are_named(comm):
    def main(world):
        trainer = hm.Trainer(world, model_of("sampled"), RULES[0], modes={"output": "allreduce"})
        wrong = [
            (lambda: trainer.repartition("embeding", 2), "did you mean 'embedding'?"),
            (lambda: trainer.repartition("output", 2), "no table 'output' lies at owners"),
            (lambda: trainer.repartition("embedding", 0), "expected one part or more"),
            (lambda: trainer.repartition("embedding", 3, homes=[0]), "an owner for each"),
            (lambda: trainer.repartition("embedding", homes=[0.5]), "homes = [0.5]"),
            (lambda: trainer.repartition("embedding", 10**6), "parts = 1000000"),
            (lambda: trainer.repartition("embedding", homes=[99]), "an owner from 0 to"),
            (lambda: trainer.repartition("embedding", 2, kind="diagonal"), '"block" or "cyclic"'),
        ]
        for attempt, text in wrong:
            try:
                attempt()
            except UsageError as error:
                assert text in str(error), str(error)
            else:
                raise AssertionError(f"no error: {text}")

    hm.run(main, servers=server_counts(comm)[-1], comm=comm)


def check_the_search_changes_no_loss(comm):
    """Every table gets its number of parts while training goes on; a run that resumes keeps what was found."""
    steps, servers = 30, 2 if comm.Get_size() == 4 else 0
    expected, kept = run(comm, servers, nothing, steps), []

    def between(trainer, step):
        if step == 0:
            kept.append(PartitionTuning(trainer, warm_up=1, timed=1))
            return
        tuning = kept[0]
        if text := tuning.step(SimpleNamespace(total_seconds=pretended(trainer, tuning))):
            kept.append(text)
        if step == steps:
            again = PartitionTuning(trainer, json.loads(json.dumps(tuning.state())))
            assert tuning.settled and again.settled and again.found == tuning.found
            specs = {spec.name: spec for spec in trainer.exchange.specs}
            assert all(len(specs[name].homes) == parts for name, parts in tuning.found.items())
            if len(trainer.world.owners) > 1:
                # The least of 3 / P + P / 3.
                assert set(tuning.found.values()) == {3} and len(tuning.found) == len(trainer.tables)
                assert len(kept) == 1 + len(tuning.found) and "3 parts, of ms a step with parts" in kept[1]

    assert run(comm, servers, between, steps) == expected


def pretended(trainer, tuning):
    """The time of a step by the number of parts of the table that is searched, and by rank: the slowest counts."""
    if tuning.settled:
        return 1.0
    parts = tuning.trainer.exchange.specs[at_owners(trainer)[tuning.waiting[0]]].map(len(trainer.world.owners)).parts
    return (3 / parts + parts / 3) * (1 + trainer.world.compute.Get_rank()) / len(trainer.world.clients)
