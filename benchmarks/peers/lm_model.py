"""The language model that lm_ddp.py trains: an LM1B model scaled down.

Embedding [vocab, width], one LSTM layer (hidden units, projected to width), sampled softmax over an output table
[vocab, width] and a bias [vocab, 1], Adagrad (rate 0.1, accumulator from 0.1), truncated back-propagation
over `steps` words with the LSTM state carried over. Negative samples are drawn log-uniformly over word ids sorted by
frequency, anew for every step and rank; the loss corrects by their expected counts and masks accidental hits.
A step's gradient touches the input words' rows of one table, and the targets' and samples' rows of the other.
"""

import time
import warnings

import common
import lm_options
import numpy as np
import torch
from torch import nn
from torch.nn import functional

warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")

RATE, ACCUMULATOR = 0.1, 0.1


class Feed:
    """One rank's endless batches: input words, target words, negative samples (all int64)."""

    def __init__(self, options, rank, ranks):
        self.options = options
        self.random = np.random.default_rng([options.seed, rank])
        weights = np.arange(1, options.vocab + 1, dtype=np.float64) ** -options.zipf
        self.cumulated = np.cumsum(weights) / weights.sum()
        self.last = self._draw(options.batch, 1)

    def _draw(self, *shape):
        drawn = np.searchsorted(self.cumulated, self.random.random(shape))
        return np.minimum(drawn, self.options.vocab - 1).astype(np.int64)

    def next(self):
        """Return the next (inputs, targets, negatives)."""
        options = self.options
        window = np.concatenate([self.last, self._draw(options.batch, options.steps)], axis=1)
        self.last = window[:, -1:]
        uniform = self.random.random(options.samples)
        negatives = np.exp(uniform * np.log(options.vocab + 1)).astype(np.int64) - 1
        negatives = np.clip(negatives, 0, options.vocab - 1)
        inputs, targets = window[:, :-1].copy(), window[:, 1:].copy()
        return torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(negatives)


class Model(nn.Module):
    """The model; its forward pass returns the mean loss of the batch and the LSTM state."""

    def __init__(self, options, sparse):
        super().__init__()
        torch.manual_seed(options.seed)
        self.width = options.width
        self.embedding = nn.Embedding(options.vocab, options.width, sparse=sparse)
        self.lstm = nn.LSTM(options.width, options.hidden, proj_size=options.width, batch_first=True)
        self.output = nn.Embedding(options.vocab, options.width, sparse=sparse)
        self.bias = nn.Embedding(options.vocab, 1, sparse=sparse)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.output.weight, -0.1, 0.1)
        nn.init.zeros_(self.bias.weight)
        rows = torch.arange(options.vocab, dtype=torch.float64)
        chance = torch.log((rows + 2) / (rows + 1)) / np.log(options.vocab + 1)
        self.log_expected = torch.log(chance * options.samples).float()

    def forward(self, inputs, targets, negatives, state):
        hidden, state = self.lstm(self.embedding(inputs), state)
        hidden, targets = hidden.reshape(-1, self.width), targets.reshape(-1)
        ids = torch.cat([targets, negatives])
        rows, bias = self.output(ids), self.bias(ids).squeeze(1) - self.log_expected[ids]
        count = len(targets)
        true = (hidden * rows[:count]).sum(1) + bias[:count]
        sampled = torch.addmm(bias[count:], hidden, rows[count:].T)
        sampled = sampled.masked_fill(negatives[None, :] == targets[:, None], -1e9)
        logits = torch.cat([true[:, None], sampled], dim=1)
        loss = functional.cross_entropy(logits, torch.zeros(count, dtype=torch.int64))
        return loss, tuple(part.detach() for part in state)


def adagrad(parameters, fused=False):
    """Return the optimiser; fused is for dense gradients only."""
    torch.sparse.check_sparse_tensor_invariants.disable()
    return torch.optim.Adagrad(parameters, lr=RATE, initial_accumulator_value=ACCUMULATOR, fused=fused)


def reference(options, ranks, steps):
    """Train in one process on the mean of all ranks' dense gradients; return the parameters."""
    model = Model(options, sparse=False)
    optimiser = adagrad(model.parameters())
    feeds, states = [Feed(options, rank, ranks) for rank in range(ranks)], [None] * ranks
    for _ in range(steps):
        optimiser.zero_grad()
        for rank, feed in enumerate(feeds):
            loss, states[rank] = model(*feed.next(), states[rank])
            (loss / ranks).backward()
        optimiser.step()
    return [parameter.detach() for parameter in model.parameters()]


def equals_reference(make_trainer, options, rank, ranks, steps=4):
    """Return whether the trainer under test, on a small model, ends where one process ends."""
    options = lm_options.small(options)
    train = make_trainer(options)
    feed = Feed(options, rank, ranks)
    for _ in range(steps):
        train(feed.next())
    expected = reference(options, ranks, steps)
    pairs = zip(train.parameters(), expected, strict=True)
    return all(torch.allclose(a.detach(), b, rtol=1e-4, atol=1e-6) for a, b in pairs)


def payload(options, ranks, rows_sent, steps=20):
    """Return the mean bytes that one rank sends per step, by formula: ring all-reduce 2(P-1)/P n, all-gather (P-1) n.

    rows_sent: "all" (tables travel as dense gradients), "unique" (summed before they are sent) or "duplicates".
    """
    model = Model(options, sparse=False)
    tables = {id(t.weight) for t in (model.embedding, model.output, model.bias)}
    dense = sum(4 * p.numel() for p in model.parameters() if rows_sent == "all" or id(p) not in tables)
    total, feed = 2 * (ranks - 1) / ranks * dense * steps, Feed(options, 0, ranks)
    for _ in range(steps if rows_sent != "all" else 0):
        inputs, targets, negatives = feed.next()
        for ids, widths in (
            (inputs.reshape(-1), [options.width]),
            (torch.cat([targets.reshape(-1), negatives]), [options.width, 1]),
        ):
            rows = len(torch.unique(ids)) if rows_sent == "unique" else len(ids)
            total += (ranks - 1) * rows * sum(8 + 4 * width for width in widths)
    return round(total / steps)


def measure(train, options, rank, ranks, barrier, slowest):
    """Train; return words/s over all ranks of every repetition, this rank's mean loss of the first and of the last
    five steps, and the loopback bytes per step.
    """
    feed, losses = Feed(options, rank, ranks), []
    for _ in range(3):
        losses.append(train(feed.next()))
    samples, sent = [], common.loopback_bytes()
    for _ in range(options.reps):
        barrier()
        start = time.perf_counter()
        for _ in range(options.steps_per_rep):
            losses.append(train(feed.next()))
        seconds = slowest(time.perf_counter() - start)
        samples.append(ranks * options.batch * options.steps * options.steps_per_rep / seconds)
    barrier()
    if sent is not None:
        sent = round((common.loopback_bytes() - sent) / (options.reps * options.steps_per_rep))
    return samples, sum(losses[:5]) / 5, sum(losses[-5:]) / 5, sent
