"""Checkpoints for the tests of `hybridmpi inspect`, of a model whose every number is known."""

from types import SimpleNamespace

import numpy as np

from hybridmpi import checkpoint
from hybridmpi.checkpoint import TableShard

ROWS, WIDTH = 1000, 8
WORDS = ["<unk>", "return", "def", "naïve", *(f"word{i}" for i in range(4, ROWS))]
JOB = {"model": {"kind": "lm", "width": WIDTH}, "training": {"steps": 2000}}
ADAGRAD = {"name": "adagrad", "rate": 0.2, "initial": 0.1, "epsilon": 1e-10}


def model(seed=0):
    """Return arrays by name: a table with its words and state, one without words, dense ones."""
    rng = np.random.default_rng(seed)
    accumulator = np.full((ROWS, WIDTH), 0.1, "f4")
    accumulator[::3] += rng.random((len(accumulator[::3]), WIDTH), "f4")
    return SimpleNamespace(
        embedding=rng.standard_normal((ROWS, WIDTH), "f4"),
        accumulator=accumulator,
        users=rng.standard_normal((70, 3)),
        weight=rng.standard_normal((3, 4), "f4"),
        bias=np.array(-3.0),
        hidden=np.zeros((64, WIDTH), "f4"),
    )


def save(root, step=1000, arrays=None, servers=2, meta=None, kind="cyclic", words=WORDS):
    """Write a checkpoint of `arrays` (of `model`) by so many servers and return its directory."""
    a = model() if arrays is None else arrays
    directory = checkpoint.begin(root, step)
    records = []
    for s in range(servers):
        begin, end = ROWS * s // servers, ROWS * (s + 1) // servers
        first, stride, mine = (s, servers, np.s_[s::servers]) if kind == "cyclic" else (begin, 1, np.s_[begin:end])
        state = {"accumulator": a.accumulator[mine]}
        shards = [
            TableShard("embedding", ROWS, WIDTH, kind, first, stride, a.embedding[mine], state),
            TableShard("users", 70, 3, "cyclic", s, servers, a.users[s::servers]),
        ]
        records.append(checkpoint.write_server(directory, s, servers, shards))
    dense = {"lstm.weight_x": a.weight, "lstm.bias": a.bias}
    slots = {"accumulator": {"lstm.weight_x": np.zeros_like(a.weight)}}
    settings = {"seed": 7, "optimizer": ADAGRAD, "job": JOB, "compute_ranks": 3, **(meta or {})}
    records.append(checkpoint.write_dense(directory, dense, slots, {"h": a.hidden}, settings, words))
    return checkpoint.commit(directory, step, records, {})
