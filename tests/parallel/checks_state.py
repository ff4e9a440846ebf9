"""What a resumed run must have again: all that training changed, but for what is named here, with a reason; and the
same bits afterwards, also in a trainer that was trained on something else before."""

import re
import shutil
import tempfile
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
from checks_adaptive import LOOK, PHASE, batch_of, machine_of
from checks_adaptive import ROWS as MANY_ROWS
from checks_training import RULES, Regression, model_of, streams_for
from object_graph import differing, state_of

import hybridmpi as hm
from hybridmpi import optim
from hybridmpi.sparse.cache import CacheOptions
from hybridmpi.training.job import read_job
from hybridmpi.training.run import Run
from hybridmpi.training.sparsity import DECAY

ROWS, BAD_STEP, SAVED, STEPS = 16, 2, 7, 10

# What training changes and a checkpoint does not keep, by why it need not.
NOT_SAVED = {
    "of the step that has ended: the next one begins with its own": (
        r"\._dense\.(_announcement\.|_complete|_missing|_share$|_weight$|buckets\[\d\]\.gradients)",
        r"\._dense\.allreduce\.",
        r"\._found#",
        r"\._rows\._(batches|to_check)",
        r"\._(stopped|last)\b",
        r"\.exchange\.(gradients|found|_sums\.|_gather\.)",
        r"\.exchange\.served\.",
        r"\.exchange\.service\.client\._(shared|messages|maps|pulls|gathered)",
        r".*\.(shards\[\d\]|shard)\.(_sums|staging)",
        r"\.(model|_custody)\..*(_grad|grad|_written)$",
    ),
    "numbers of messages among the ranks of this trainer, which begin anew together": (
        r"\.exchange\.service\.client\.(_norms|_pushes|asking|_board)",
        r"\.exchange\.service\.server\.(_norms|_pushes|_push_sent|_to_take|_answering)",
        r"\.exchange\.service\.(exchange\.|number$)",
    ),
    "seconds and bytes since this process began, for people": (
        r"\._dense\.(after|during|hidden|_since)$",
        r".*\.traffic\.",
        r".*(busy_seconds|wait_seconds|pull_seconds)$",
    ),
    "averages of what happened since: the next look is at fewer steps": (
        r"\.sparsity\._(now|looked|told)",
        r".*\.(shards\[\d\]|shard)\.(_touched|accesses)",
    ),
    "the memory that shards lie in, and what pads it": (r"\.exchange\.service\.memories",),
    "whose directory it is: that of the run that writes into it": (r"\._saving\.(_owned|_told|run$)",),
    "of the machine, which may be another": (r"\.adaptation\._machine",),
    "rows kept or asked for, which are asked for anew": (r"\.exchange\.reader\.", r"\._rows\.(_next|_counted)"),
    "when rows changed, for those who keep them: nobody does yet": (r".*\.clocks",),
}
EXCUSED = re.compile("|".join(f"(?:{pattern})" for patterns in NOT_SAVED.values() for pattern in patterns))
# Owners hear of no step while no table is theirs; one that returns brings the number of steps with it.
WITHOUT_TABLES = re.compile(r"\.exchange\.service\.(client\.(_versions|pushed)|server\.applied)$")


def batches(world, first, seed=5):
    """Examples from step `first` (0: the first one) on; a NaN on rank 0 in BAD_STEP."""
    rank = world.compute.Get_rank()
    for step in range(first, STEPS):
        rng = np.random.default_rng([seed, step, rank])
        ids, targets = rng.integers(0, ROWS, 40), rng.standard_normal(40)
        if step == BAD_STEP and rank == 0:
            targets[0] = np.nan
        yield ids, targets


def windows(world, first, seed=5):
    streams = streams_for(world)
    streams.position = first + seed
    return (batch if batch.inputs.size else None for batch in streams)


def resumed(comm, servers, make_model, examples, look=lambda trainer: None, places=None, **options):
    """Save after some steps; what a new trainer has after loading is what the first one had, and so is what it does.
    `look` is called with the first trainer when it begins and when it has saved, and with the one that has loaded."""

    def main(world):
        def trainer_of(seed=1):
            made = hm.Trainer(world, make_model(), RULES[3], seed=seed, nonfinite="skip", **options)
            made.adaptation.measure = machine_of
            return made

        folder = world.from_root(tempfile.mkdtemp)
        first, other, second = trainer_of(), trainer_of(), trainer_of()
        begun = state_of(first)
        look(first)
        first.fit(examples(world, 0), SAVED - 2)
        first.balance()
        first.fit(examples(world, SAVED - 2), SAVED)
        first.save(folder, meta={"position": SAVED})
        look(first)
        trained = state_of(first)
        assert second.load(folder)["position"] == SAVED
        look(second)
        again = state_of(second)
        lost = [path for path in differing(begun, trained) & differing(trained, again) if not EXCUSED.match(path)]
        if not first.exchange.at_owners:
            lost = [path for path in lost if not WITHOUT_TABLES.match(path)]
        assert not lost, "changed by training, and not there again:\n  " + "\n  ".join(
            f"{path}: {begun.get(path)} -> {trained.get(path)}, resumed: {again.get(path)}" for path in sorted(lost)
        )
        other.fit(examples(world, 0, seed=6), SAVED + 1)
        other.load(folder)
        ends = []
        for trainer in (first, second, other):
            results = []
            trainer.fit(examples(world, SAVED), STEPS, results.append)
            losses = [(result.step, result.loss, result.skipped) for result in results]
            assert len(losses) == STEPS - SAVED
            arrays, slots = trainer.dense_arrays()
            dense = [array.tobytes() for array in (*arrays.values(), *(a for s in slots.values() for a in s.values()))]
            tables = [table.pull(np.arange(table.rows)).tobytes() for table in trainer.tables]
            about = (trainer.step, trainer.skipped, trainer.exchange.updates, dict(trainer.exchange.ways))
            ends.append((losses, about, dense, tables))
        for end in ends[1:]:
            assert [a == b for a, b in zip(end, ends[0], strict=True)] == [True] * 4, (end[:2], ends[0][:2])
        world.barrier()
        if world.on_root():
            shutil.rmtree(folder)

    hm.run(main, servers=servers, comm=comm, nodes_of_ranks=places)


def check_all_that_training_changed_is_there_again(comm):
    """Skipped steps, tables that left their owners, and means of alpha; on nodes of one rank."""
    sparse = hm.SparseOptions(adapt_every=3)
    moved = []

    def look_where(trainer):
        moved.append(trainer.exchange.ways["table"])

    arguments = (comm, 0, lambda: Regression(ROWS), batches, look_where)
    resumed(*arguments, places=lambda rank: rank, clip=0.5, sparse=sparse)
    assert moved == (["ps", "ps", "ps"] if comm.Get_size() == 1 else ["ps", "allreduce", "allreduce"]), moved


def check_every_mode_is_resumed(comm):
    for mode in ("ps", "allreduce", "allgather"):
        resumed(comm, 0, lambda: Regression(ROWS), batches, mode=mode)


def check_carried_state_draws_and_rows_kept_are_resumed(comm):
    """A language model with sampled softmax, whose rows are kept and asked for ahead; tables dealt anew."""

    def dealt_anew(trainer):
        if trainer.step == 0:
            owners = len(trainer.world.owners)
            trainer.repartition("embedding", homes=[owners - 1, 0, owners - 1], kind="block")

    sparse = hm.SparseOptions(prefetch=True, cache=CacheOptions(20))
    for servers in sorted({0, comm.Get_size() // 2}):
        arguments = (comm, servers, lambda: model_of("sampled"), windows, dealt_anew)
        resumed(*arguments, places=lambda rank: rank, sparse=sparse)


def check_a_table_returns_to_where_it_was_dealt(comm):
    """Dealt anew, then held by every rank when the checkpoint is written, then back at its owners."""
    if comm.Get_size() == 1:
        return

    def main(world):
        def trainer_of():
            sparse = hm.SparseOptions(adapt_every=LOOK)
            made = hm.Trainer(world, Regression(MANY_ROWS), optim.Adam(0.01), sparse=sparse)
            made.adaptation.measure = machine_of
            return made

        def train(trainer, steps):
            place = world.compute.Get_rank(), world.compute.Get_size()
            trainer.fit((batch_of(step, *place) for step in range(trainer.step, steps)), steps)
            spec = trainer.exchange.specs[0]
            return trainer.exchange.ways["table"], spec.homes, spec.partition

        folder = world.from_root(tempfile.mkdtemp)
        first, second = trainer_of(), trainer_of()
        first.repartition("table", homes=[1, 0, 1], kind="block")
        assert train(first, PHASE - 1)[:2] == ("allreduce", ())
        first.save(folder)
        second.load(folder)
        assert train(first, 2 * PHASE) == train(second, 2 * PHASE) == ("ps", (1, 0, 1), "block")
        rows = [trainer.tables[0].pull(np.arange(MANY_ROWS)).tobytes() for trainer in (first, second)]
        assert rows[0] == rows[1]
        world.barrier()
        if world.on_root():
            shutil.rmtree(folder)

    hm.run(main, servers=0, comm=comm, nodes_of_ranks=lambda rank: rank)


JOB = """
[model]
width = 8
hidden = 8
[data]
source = "text.txt"
cache = "cache"
streams = 12
steps = 5
[optimizer]
kind = "adagrad"
[training]
evaluate = 0
progress = 60
[sparse]
search = true
[checkpoint]
directory = "run"
[metrics]
path = ""
"""


def check_a_job_goes_on_with_its_search(comm):
    """What was timed with which numbers of parts is not timed again."""

    def main(world):
        def started(resume, steps):
            run = Run(world, read_job("job.toml", [f"training.steps={steps}"]))
            run.begin(resume)
            return run

        folder = world.from_root(tempfile.mkdtemp)
        with chdir(folder), redirect_stdout(StringIO()):
            if world.on_root():
                Path("text.txt").write_text(" ".join(f"w{number * number % 97}" for number in range(2000)))
                Path("job.toml").write_text(JOB)
            world.barrier()
            first = started(None, 40)
            assert first.train() == 0
            state = first.tuning.state()
            assert any(search["samples"] for search in state["searches"].values()) or len(world.owners) == 1, state
            again = started("", 41)
            assert again.tuning.state() == state and again.trainer.step == 40
        world.barrier()
        if world.on_root():
            shutil.rmtree(folder)

    hm.run(main, servers=0, comm=comm)


def check_a_skipped_step_counts_in_no_alpha(comm):
    """It updates no row: alpha is that of the steps that did, since the last look or in all."""

    def main(world):
        rank, ranks = world.compute.Get_rank(), world.compute.Get_size()
        for mode in ("hybrid", "allreduce", "allgather"):
            trainer = hm.Trainer(world, Regression(20), optim.SGD(0.1), mode=mode, nonfinite="skip")
            for step in range(4):
                targets = np.full(4, np.nan if step == 1 else 1.0)
                trainer.train_step((np.array([0, 1, 1, 2 + rank]), targets))
            assert trainer.skipped == 1
            for found in (trainer.sparsity.lately, trainer.sparsity.so_far, trainer.sparsity.levels):
                alpha = found()["table"]
                assert np.isclose(alpha.rank, 3 / 20) and np.isclose(alpha.all, (2 + ranks) / 20), (mode, found, alpha)
            for _ in range(2):  # each look is at the steps since the one before of its kind
                trainer.train_step((np.zeros(4, np.int64), np.ones(4)))
            found = [look()["table"] for look in (trainer.sparsity.lately, trainer.sparsity.so_far)]
            found.append(trainer.sparsity.levels()["table"])
            expected = np.array([1.0, (3 * 3 + 2 * 1) / 5, (DECAY * 3 + 1) / (DECAY + 1)]) / 20
            assert np.allclose([alpha.rank for alpha in found], expected), (mode, found)
            trainer.close()

    hm.run(main, servers=min(1, comm.Get_size() - 1), comm=comm)


def check_balance_weighs_what_was_pushed_since_the_last_look(comm):
    """One part's rows are used, then another's: the second look knows nothing of the first ones."""
    rows = 5

    def main(world):
        owners = len(world.owners)
        parts = 4 * owners
        trainer = hm.Trainer(world, Regression(rows * parts), optim.SGD(0.1))
        trainer.repartition("table", homes=[owner for owner in range(owners) for _ in range(4)], kind="block")

        def pushed():
            counts = {}
            for answer in trainer.service.call("statistics"):
                counts |= answer["accesses"][0]
            return [counts[part] for part in range(parts)]

        for used in (0, parts - 1, 0):
            for _ in range(2):
                trainer.train_step((np.arange(rows * used, rows * (used + 1)), np.ones(rows)))
            each = 2 * rows * len(world.clients)
            assert pushed() == [each * (part == used) for part in range(parts)]
            trainer.balance()
            assert not any(pushed())
        world.barrier()

    hm.run(main, servers=comm.Get_size() // 2, comm=comm)
