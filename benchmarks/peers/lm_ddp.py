"""Peer: data-parallel training of a word-level language model with PyTorch on gloo.

Purpose      words/s over all ranks, and bytes sent per rank and step, of the model in lm_model.py
Environment  python -m venv V && V/bin/pip install torch==2.13.0 numpy==2.4.6
Usage        V/bin/python lm_ddp.py --ranks 2 --grad dense
             V/bin/python lm_ddp.py --ranks 2 --grad sparse
             V/bin/python lm_ddp.py --ranks 2 --grad allgather [--no-local-sum]

--grad dense      nn.Embedding with dense gradients, DistributedDataParallel (gradients as bucket views), fused Adagrad
--grad sparse     nn.Embedding(sparse=True), DistributedDataParallel, which all-reduces sparse tensors on gloo
--grad allgather  nn.Embedding(sparse=True), no DistributedDataParallel: dense gradients in one flat all-reduce, then an
                  all-gather of every table's row ids and values. Rows are summed before they are sent, or, with
                  --no-local-sum, sent with their duplicates
All three do the same arithmetic on the same data; the losses in `info` must agree.

Validation: a small model trained by the same code must end where one process ends; afterwards all ranks must hold the
same parameters, and the loss must have fallen. bytes_sent_per_rank is payload per step by formula: ring all-reduce
2(P-1)/P n, all-gather (P-1) n. loopback_bytes_per_step is what the kernel counted for all ranks, protocol and all;
anything else that talks over the loopback interface is in it too.
"""

import common
import gloo
import lm_options


class Trainer:
    """Forward, backward, exchange, update; calling it with a batch returns the local loss."""

    def __init__(self, options, rank, ranks, dist):
        import lm_model
        import torch

        self.torch, self.dist, self.ranks, self.options = torch, dist, ranks, options
        self.model = lm_model.Model(options, sparse=options.grad != "dense")
        self.run = self.model
        if options.grad != "allgather":
            self.run = torch.nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self.optimiser = lm_model.adagrad(self.model.parameters(), fused=options.grad == "dense")
        self.state = None

    def parameters(self):
        return self.model.parameters()

    def __call__(self, batch):
        self.optimiser.zero_grad()
        loss, self.state = self.run(*batch, self.state)
        loss.backward()
        if self.options.grad == "allgather":
            self.exchange()
        self.optimiser.step()
        return loss.item()

    def exchange(self):
        """Average all gradients over the ranks, the sparse ones by all-gather."""
        torch, dist = self.torch, self.dist
        dense = [p.grad for p in self.model.parameters() if not p.grad.is_sparse]
        flat = torch.cat([grad.reshape(-1) for grad in dense])
        dist.all_reduce(flat)
        flat /= self.ranks
        for grad, part in zip(dense, flat.split([grad.numel() for grad in dense]), strict=True):
            grad.copy_(part.view_as(grad))
        tables = [p for p in self.model.parameters() if p.grad.is_sparse]
        grads = [p.grad.coalesce() if self.options.local_sum else p.grad for p in tables]
        counts = torch.tensor([len(grad._values()) for grad in grads])
        everyone = torch.empty(self.ranks, len(grads), dtype=torch.int64)
        dist.all_gather_single(everyone, counts[None])
        for column, (parameter, grad) in enumerate(zip(tables, grads, strict=True)):
            longest = int(everyone[:, column].max())
            ids, values = grad._indices()[0], grad._values()
            ids = self.gather(torch, dist, ids, longest, everyone[:, column])
            values = self.gather(torch, dist, values, longest, everyone[:, column])
            parameter.grad = torch.sparse_coo_tensor(ids[None], values / self.ranks, parameter.shape)

    def gather(self, torch, dist, mine, longest, counts):
        """All-gather arrays of unequal length, padded on the wire to the longest."""
        padded = mine.new_zeros((longest,) + mine.shape[1:])
        padded[: len(mine)] = mine
        gathered = mine.new_empty((self.ranks * longest,) + mine.shape[1:])
        dist.all_gather_single(gathered, padded)
        if bool((counts == longest).all()):
            return gathered
        parts = zip(gathered.split(longest), counts.tolist(), strict=True)
        return torch.cat([part[:count] for part, count in parts])


def work(rank, ranks, options, torch, dist):
    import lm_model

    def make_trainer(chosen):
        return Trainer(chosen, rank, ranks, dist)

    ok = gloo.all_ranks(torch, dist, lm_model.equals_reference(make_trainer, options, rank, ranks))
    common.require(ok, "the small model does not end where one process ends")
    train = make_trainer(options)
    samples, first, last, loopback = lm_model.measure(
        train, options, rank, ranks, dist.barrier, lambda seconds: gloo.slowest(torch, dist, seconds)
    )
    own = torch.stack([p.detach().double().sum() for p in train.parameters()])
    root = own.clone()
    dist.broadcast(root, 0)
    common.require(gloo.all_ranks(torch, dist, torch.equal(own, root)), "ranks hold different parameters")
    common.require(gloo.all_ranks(torch, dist, last < first), f"the loss did not fall: {first} to {last}")
    if rank == 0:
        params = {"ranks": ranks, "grad": options.grad, **lm_options.parameters_of(options)}
        if options.grad == "allgather":
            params["local_sum"] = options.local_sum
        rows_sent = "all" if options.grad == "dense" else "unique"
        if options.grad == "allgather" and not options.local_sum:
            rows_sent = "duplicates"
        result = common.record(
            "torch.distributed+gloo" if options.grad == "allgather" else "torch DDP+gloo",
            f"torch {torch.__version__}",
            "language model training",
            params,
            samples,
            "words/s",
            {
                "bytes_sent_per_rank": lm_model.payload(options, ranks, rows_sent),
                "loopback_bytes_per_step": loopback,
                "first_loss": common.significant(first),
                "last_loss": common.significant(last),
            },
        )
        common.describe(result)
        common.emit(result)


def main():
    arguments = common.parser(__doc__)
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--grad", choices=("dense", "sparse", "allgather"), default="sparse")
    arguments.add_argument(
        "--no-local-sum", dest="local_sum", action="store_false", help="allgather: send duplicate rows as they are"
    )
    lm_options.add_arguments(arguments)
    gloo.spawn(work, common.parse(arguments))


if __name__ == "__main__":
    main()
