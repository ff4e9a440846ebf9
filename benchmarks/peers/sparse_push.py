"""Peer: pushing sparse gradients into an embedding table replicated on every process (torch, gloo).

Purpose      rows/s (all ranks' pushed rows, duplicates included) of one whole step: all-gather ids and values over
             gloo, sum duplicates, apply Adagrad to the touched rows of every replica
Environment  python -m venv V && V/bin/pip install torch==2.13.0 numpy==2.4.6
Usage        V/bin/python sparse_push.py --ranks 2 --batch 10000 --width 64 --table 1000000

Every rank pushes --batch rows per step, ids drawn from a Zipf law and scattered over the table. Variants, all timed:
update=optimiser  the gradient becomes a sparse tensor and torch.optim.Adagrad applies it
update=rows       by hand: ids sorted, rows summed, then updated by index_select and index_copy_
local_sum=yes     each rank sums its own duplicates before sending (unequal lengths, padded); =no sends all rows as
                  they are
Validation: from the same start, three steps of each variant must leave all replicas bitwise alike, and the touched
rows as a float64 numpy computation leaves them. loopback_bytes_per_step is what the kernel counted for all ranks.
The JSON line's headline is the fastest variant; `results` has all four.
"""

import time

import common
import gloo

RATE, EPSILON, ACCUMULATOR = 0.1, 1e-10, 0.1


class Replica:
    """One rank's copy of the table and of Adagrad's accumulator."""

    def __init__(self, options, update, torch):
        self.torch, self.update = torch, update
        torch.manual_seed(options.seed)
        self.table = torch.nn.Parameter(torch.randn(options.table, options.width))
        self.optimiser = torch.optim.Adagrad([self.table], lr=RATE, eps=EPSILON, initial_accumulator_value=ACCUMULATOR)
        self.accumulator = self.optimiser.state[self.table]["sum"]

    def apply(self, ids, values):
        """Sum the duplicates and update the rows once each."""
        torch = self.torch
        if self.update == "optimiser":
            self.table.grad = torch.sparse_coo_tensor(ids[None], values, self.table.shape)
            self.optimiser.step()
            return
        with torch.no_grad():
            unique, grad = sum_rows(torch, ids, values)
            accumulated = self.accumulator.index_select(0, unique).addcmul_(grad, grad)
            self.accumulator.index_copy_(0, unique, accumulated)
            rows = self.table.index_select(0, unique).addcdiv_(grad, accumulated.sqrt_().add_(EPSILON), value=-RATE)
            self.table.index_copy_(0, unique, rows)


def sum_rows(torch, ids, values):
    """Return the sorted unique ids and the sums of their rows: torch_embedding_bag, the fastest way in aggregate.py."""
    ordered, order = torch.sort(ids, stable=True)
    unique, counts = torch.unique_consecutive(ordered, return_counts=True)
    return unique, torch.nn.functional.embedding_bag(order, values, torch.cumsum(counts, 0) - counts, mode="sum")


def exchange(torch, dist, ids, values, ranks, local_sum):
    """All-gather every rank's ids and values."""
    if local_sum:
        ids, values = sum_rows(torch, ids, values)
        counts = torch.empty(ranks, dtype=torch.int64)
        dist.all_gather_single(counts, torch.tensor([len(ids)]))
        longest = int(counts.max())
        keep = torch.cat([torch.arange(c) + i * longest for i, c in enumerate(counts.tolist())])
        padded_ids, padded_values = ids.new_zeros(longest), values.new_zeros(longest, values.shape[1])
        padded_ids[: len(ids)], padded_values[: len(ids)] = ids, values
        ids, values = padded_ids, padded_values
    all_ids = ids.new_empty(ranks * len(ids))
    all_values = values.new_empty(ranks * len(ids), values.shape[1])
    dist.all_gather_single(all_ids, ids)
    dist.all_gather_single(all_values, values)
    return (all_ids[keep], all_values[keep]) if local_sum else (all_ids, all_values)


def batches(options, rank, count):
    """Return this rank's batches of (ids, values), as numpy arrays."""
    import numpy as np

    weights = np.arange(1, options.table + 1, dtype=np.float64) ** -options.zipf
    cumulated = np.cumsum(weights) / weights.sum()
    place = np.random.default_rng(options.seed).permutation(options.table)
    random = np.random.default_rng([options.seed, rank])
    result = []
    for _ in range(count):
        drawn = np.minimum(np.searchsorted(cumulated, random.random(options.batch)), options.table - 1)
        result.append(
            (place[drawn].astype(np.int64), random.standard_normal((options.batch, options.width), dtype=np.float32))
        )
    return result


def right(options, replica, start, ranks, steps):
    """Return whether the touched rows are what numpy computes in float64 from all ranks' batches."""
    import numpy as np

    everyone = [batches(options, rank, steps) for rank in range(ranks)]
    touched = np.unique(np.concatenate([ids for one in everyone for ids, _ in one]))
    table, accumulator = start[touched].numpy().astype(np.float64), np.full((len(touched), options.width), ACCUMULATOR)
    for step in range(steps):
        grad = np.zeros_like(table)
        for one in everyone:
            np.add.at(grad, np.searchsorted(touched, one[step][0]), one[step][1].astype(np.float64))
        accumulator += grad**2
        table -= RATE * grad / (np.sqrt(accumulator) + EPSILON)
    return np.allclose(replica.table.detach()[touched].numpy(), table, rtol=1e-4, atol=1e-4)


def work(rank, ranks, options, torch, dist):
    torch.sparse.check_sparse_tensor_invariants.disable()
    data = [(torch.from_numpy(ids), torch.from_numpy(values)) for ids, values in batches(options, rank, 8)]
    results = []
    for update in ("optimiser", "rows"):
        for local_sum in (False, True):
            replica = Replica(options, update, torch)
            start = replica.table.detach().clone()

            def step(number, replica=replica, local_sum=local_sum):
                ids, values = data[number % len(data)]
                replica.apply(*exchange(torch, dist, ids, values, ranks, local_sum))

            for number in range(3):
                step(number)
            common.require(
                gloo.all_ranks(torch, dist, right(options, replica, start, ranks, 3)),
                f"update={update} local_sum={local_sum}: wrong rows",
            )
            own = replica.table.detach()
            root = own.clone()
            dist.broadcast(root, 0)
            common.require(gloo.all_ranks(torch, dist, torch.equal(own, root)), "replicas differ")
            del start, root
            samples, sent = [], common.loopback_bytes()
            for _ in range(options.reps):
                dist.barrier()
                begin = time.perf_counter()
                for number in range(options.steps_per_rep):
                    step(number)
                seconds = gloo.slowest(torch, dist, time.perf_counter() - begin)
                samples.append(ranks * options.batch * options.steps_per_rep / seconds)
            dist.barrier()
            info = {}
            if sent is not None:
                info["loopback_bytes_per_step"] = round(
                    (common.loopback_bytes() - sent) / (options.reps * options.steps_per_rep)
                )
            params = {
                "ranks": ranks,
                "update": update,
                "local_sum": local_sum,
                "batch": options.batch,
                "width": options.width,
                "table": options.table,
                "zipf": options.zipf,
                "threads": options.threads,
            }
            results.append(
                common.record(
                    "torch.distributed+gloo",
                    f"torch {torch.__version__}",
                    "push of sparse gradients with Adagrad",
                    params,
                    samples,
                    "rows/s",
                    info,
                )
            )
            if rank == 0:
                common.describe(results[-1])
    if rank == 0:
        common.emit({**max(results, key=lambda result: result["median"]), "results": results})


def main():
    arguments = common.parser(__doc__)
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--batch", type=int, default=10_000, help="rows pushed by each rank in a step")
    arguments.add_argument("--width", type=int, default=64)
    arguments.add_argument("--table", type=int, default=1_000_000, help="rows of the table")
    arguments.add_argument("--zipf", type=float, default=1.1)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--steps-per-rep", type=int, default=5)
    gloo.spawn(work, common.parse(arguments))


if __name__ == "__main__":
    main()
