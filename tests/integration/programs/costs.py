"""What a run costs, measured from inside: python costs.py MEASUREMENT. Rank 0 prints one JSON object.

Runs on 2 compute ranks and a server. The test that starts it judges the figures.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np

import hybridmpi as hm
import hybridmpi.training.trainer
from hybridmpi.models.lm import LanguageModel

IDLE_SECONDS = 3.0
TURNS = 20


def cpu_seconds(process):
    """Return the seconds that all threads of a process have run, from the scheduler's own books (nanoseconds)."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def memory(process):
    """Return the kernel's figures on a process's memory, in MB: now by kind, and the peak."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    wanted = ("VmHWM", "VmRSS", "RssAnon", "RssFile", "RssShmem")
    found = dict(line.split(":", 1) for line in lines if line.startswith(wanted))
    return {name: int(value.split()[0]) / 1024 for name, value in found.items()}


def language_model(world, vocabulary, streams):
    """Return (trainer, batches): a small model of words drawn from a Zipf distribution."""
    model = LanguageModel(vocabulary, 64, 96, 256)
    trainer = hm.Trainer(world, model, hm.optim.Adagrad(0.1))
    rank, ranks = world.compute.Get_rank(), world.compute.Get_size()
    return trainer, hm.data.ZipfStreams(vocabulary, 1.0, streams, 20, 5, rank, ranks)


def idle(world, server):
    """Processor time of a server and of a compute rank that waits, as shares of a core, while compute rank 0 sleeps."""
    trainer, batches = language_model(world, 5000, 8)
    trainer.fit(batches, 5)
    world.barrier()
    started, before, own = time.perf_counter(), cpu_seconds(server), cpu_seconds("self")
    if world.on_root():
        time.sleep(IDLE_SECONDS)
    world.barrier()
    seconds = time.perf_counter() - started
    shares = {"server": (cpu_seconds(server) - before) / seconds, "self": (cpu_seconds("self") - own) / seconds}
    trainer.close()
    return shares


def waiting(world, server):
    """Seconds of forward and backward of compute rank 1, whose reader is slow, while rank 0 waits for it: as it does,
    or, in every other step, asleep until the work is done. The difference is what waiting costs the one that works."""
    trainer, batches = language_model(world, 20_000, 64)
    slow = not world.on_root()
    reader, asleep = 0.05, 0.1  # rank 0 arrives well before rank 1 works, and sleeps until well after
    agree = hybridmpi.training.trainer.agree

    def agree_later(*arguments):
        if not slow and trainer.step % 2:
            time.sleep(asleep)
        return agree(*arguments)

    hybridmpi.training.trainer.agree = agree_later

    def slow_reader():
        for batch in batches:
            if slow:
                time.sleep(reader)
            yield batch

    seconds = {"waiting": [], "asleep": []}

    def note(result):
        if result.step > 4:  # the first steps compile, allocate and fault
            how = "waiting" if result.step % 2 else "asleep"  # trainer.step was one less in this step
            seconds[how].append(result.seconds["forward"] + result.seconds["backward"])

    trainer.fit(slow_reader(), 4 + 2 * TURNS, note)
    trainer.close()
    return {name: float(np.median(values)) for name, values in seconds.items()}


class Rows(hm.nn.Module):
    """Rows of one large table, drawn to zero."""

    def __init__(self, rows, dim):
        self.table = hm.nn.Embedding(rows, dim)

    def loss(self, ids):
        rows = self.table(ids)
        return hm.autograd.mean(rows * rows)


def large_table(world, server):
    """Memory of a compute rank that uses a table of 2,000,000 x 128 float32 (1 GB), held by one server: at the start,
    and the largest seen during 200 steps of Zipf ids, by kind."""
    rows, dim, steps = 2_000_000, 128, 200
    before = largest = memory("self")
    trainer = hm.Trainer(world, Rows(rows, dim), hm.optim.Adagrad(0.1))
    streams = hm.data.ZipfStreams(rows, 1.0, 64 * len(world.clients), 20, 5, world.rank, len(world.clients))
    seen = np.zeros(rows, bool)

    def ids():
        nonlocal largest
        for batch in streams:
            seen[batch.inputs] = True
            now = memory("self")
            largest = {kind: max(largest[kind], now[kind]) for kind in now}
            yield batch.inputs.reshape(-1)

    trainer.fit(ids(), steps)
    trainer.close()
    table = rows * dim * 4 / 2**20
    return {"table": table, "before": before, "largest": largest, "rows_touched": int(seen.sum())}


MEASUREMENTS = {"idle": idle, "waiting": waiting, "large-table": large_table}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("measurement", choices=MEASUREMENTS)
    options = parser.parse_args()
    with hm.World(servers=1) as world:
        processes = world.comm.allgather(os.getpid())
        if world.is_server:
            return
        figures = MEASUREMENTS[options.measurement](world, processes[world.servers[0]])
        everybody = world.gather(figures)
        server = memory(processes[world.servers[0]])
        if world.on_root():
            print("\n" + json.dumps({"ranks": everybody, "server": server}), flush=True)


if __name__ == "__main__":
    main()
