"""Translation on many ranks against one: same losses, parameters, evaluation; and that the job learns."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

import hybridmpi as hm
from hybridmpi import data
from hybridmpi.data import Pairs, Sentences
from hybridmpi.models.nmt import TranslationModel
from hybridmpi.training.job import default_job
from hybridmpi.training.run import Run

SOURCE, TARGET, SENTENCES = 31, 41, 9


def text(count=60):
    """Sentences of one to six words, each translated by other words in the opposite order; 0 ends each."""
    random = np.random.default_rng(4)
    drawn = [random.integers(1, SOURCE, random.integers(1, 7)) for _ in range(count)]
    return Pairs(
        Sentences.of(np.append(words, 0) for words in drawn),
        Sentences.of(np.append((words[::-1] * 3) % (TARGET - 1) + 1, 0) for words in drawn),
    )


def train(comm, servers, softmax, steps=5):
    """Return (losses, parameters and tables by name, held-out loss, translations) of a run on `comm`."""

    def main(world):
        rank, ranks = world.compute.Get_rank(), world.compute.Get_size()
        model = TranslationModel(SOURCE, TARGET, 8, 6, samples=16, softmax=softmax, dtype=np.float64)
        trainer = hm.Trainer(world, model, hm.optim.Adagrad(0.1, initial=1e-3), clip=0.5)
        batches = data.PairBatches(text(), SENTENCES, 2, rank, ranks)
        losses = []
        for_training = (batch if batch.weight else None for batch in batches)
        trainer.fit(for_training, steps, lambda result: losses.append((result.loss, result.examples)))
        arrays = {name: array.copy() for name, array in trainer.dense_arrays()[0].items()}
        arrays |= {table.name: table.pull(np.arange(table.rows)) for table in trainer.tables}
        model.eval()
        passes = list(data.held_out_pair_batches(text(7), 4, rank, ranks).one_pass())
        sums = np.sum(world.gather(np.sum([model.evaluate(batch) for batch in passes], axis=0)), axis=0)
        translated = {}
        for batch in passes:
            found = model.translate(batch, 0, 6)
            translated |= {int(number): words.tolist() for number, words in zip(batch.pairs, found, strict=True)}
        everything = {}
        for part in world.gather(translated):
            everything |= part
        world.barrier()
        return losses, arrays, sums, everything

    result = hm.run(main, servers=servers, comm=comm)
    root = comm.allgather(result is not None).index(True)
    return comm.bcast(result, root)


def check_equals_one_process(comm):
    """Sentences of unequal lengths dealt to the ranks, weighted by their words: as one process with all of them."""
    for softmax in ("full", "sampled"):
        expected = train(comm.Split(comm.Get_rank()), 0, softmax)
        for servers in sorted({0, min(1, comm.Get_size() - 1)}):
            found = train(comm, servers, softmax)
            assert np.allclose(found[0], expected[0], rtol=1e-10), (softmax, servers, found[0], expected[0])
            for name, array in expected[1].items():
                assert np.allclose(found[1][name], array, rtol=1e-8, atol=1e-11), (softmax, servers, name)
            assert np.allclose(found[2], expected[2], rtol=1e-9)
            assert found[3] == expected[3] and len(found[3]) == 7


def check_the_job_learns(comm):
    """A small job on statements of the standard library: held-out perplexity well below the unigram model's."""
    if comm.Get_size() != 2:  # once is enough: that other numbers of ranks do the same, the other check says
        return
    folder = comm.bcast(tempfile.mkdtemp() if comm.Get_rank() == 0 else None)
    job = default_job("nmt")
    job = replace(
        job,
        model=replace(job.model, width=32, hidden=32, samples=128),
        optimizer=hm.optim.Adagrad(0.1, initial=1e-5),
        data=replace(job.data, vocabulary=500, longest=16, most=4000, sentences=32, cache=folder),
        training=replace(job.training, steps=200, evaluate=0, progress=1e9),
        checkpoint=replace(job.checkpoint, directory=str(Path(folder, "run"))),
    )

    def main(world):
        run = Run(world, job)
        run.begin(None)
        losses = []
        run.trainer.fit(run.batches(0), job.training.steps, lambda result: losses.append(result.loss))
        run.model.eval()
        values = run.task.evaluate(world).values
        run.metrics.close()
        world.barrier()
        return losses, values

    losses, values = hm.run(main, servers=0, comm=comm)
    assert np.mean(losses[-20:]) < 0.7 * np.mean(losses[:5]), losses
    assert values["perplexity"] < values["unigram_perplexity"] / 3, values
    assert values["sentences"] > 100 and 0 <= values["exact"] <= 1 and values["bleu"] > 0, values
    comm.Barrier()
    if comm.Get_rank() == 0:
        for path in sorted(Path(folder).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        Path(folder).rmdir()
