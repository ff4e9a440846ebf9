"""What steps of a job touch and compute, from its batches, drawn as a run of so many ranks would draw them.

Exact for the steps that are looked at: repeated words, candidates, unequal shares and ranks without any are all there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridmpi.autograd import draws
from hybridmpi.nn import Module
from hybridmpi.planning.machine import Machine
from hybridmpi.planning.workload import Dense, Sparse, Touched
from hybridmpi.sparse.partition import Kind, Partition


@dataclass(frozen=True)
class Drawn:
    """Some steps of all ranks. `rows[name][r][s]`: the distinct rows that rank r touches of a table in step s, sorted;
    `examples`, `flops` float64 [ranks, steps]: how many examples it has, and the additions and multiplications of its
    forward and backward."""

    rows: Mapping[str, Sequence[Sequence[np.ndarray]]]
    examples: np.ndarray
    flops: np.ndarray

    def touched(self, table: Sparse, machine: Machine) -> Touched:
        """Return the means over the steps of what is touched of a table. Local."""
        return touched_rows(self.rows[table.name], table.map(machine.owners), ranks_of_nodes(machine))

    @property
    def examples_per_step(self) -> float:
        """Examples of a step of all ranks together, mean over the steps."""
        return float(self.examples.sum(axis=0).mean())


def draw_steps(model: Module, batches: Sequence[Sequence[Any]], seed: int) -> Drawn:
    """Return what the first steps of a job do. Local; without the values of any parameter.

    `batches[r][s]`: rank r's of step s, None where it has none, else with its `weight`; `model`: with `rows_wanted` and
    `flops`; what it does not say that it wants of a table is all of it. `seed`: the job's, for what is drawn.
    """
    tables = model.named_tables()
    everything = {name: np.arange(table.rows) for name, table in tables}
    rows: dict[str, list[list[np.ndarray]]] = {name: [[] for _ in batches] for name in everything}
    examples, flops = np.zeros((2, len(batches), len(batches[0])))
    for rank, of_rank in enumerate(batches):
        for step, batch in enumerate(of_rank):
            wanted: Mapping[str, np.ndarray] = {}
            if batch is not None:
                draws.begin_step(seed, step, rank)
                wanted = everything | {name: np.unique(ids) for name, ids in model.rows_wanted(batch).items()}
                examples[rank, step] = batch.weight
                flops[rank, step] = model.flops(batch, {name: len(ids) for name, ids in wanted.items()})
            for name in everything:
                rows[name][rank].append(wanted.get(name, everything[name][:0]))
    return Drawn(rows, examples, flops)


def describe_model(
    model: Module, slots: int, partition: Kind = "cyclic"
) -> tuple[tuple[Dense, ...], tuple[Sparse, ...]]:
    """Return the parameters of a model: dense ones, and tables of which only steps tell what they touch. Local.

    `slots`: the optimiser's state arrays.
    """
    dense = tuple(Dense(name, p.shape, np.dtype(p.dtype).name, slots) for name, p in model.named_parameters())
    sparse = tuple(
        Sparse(name, t.rows, t.dim, np.dtype(t.dtype).name, slots, (), partition) for name, t in model.named_tables()
    )
    return dense, sparse


def ranks_of_nodes(machine: Machine) -> list[list[int]]:
    """Return the compute ranks of each node, numbered node by node. Local."""
    ends = np.cumsum(machine.compute)
    return [list(range(end - count, end)) for end, count in zip(ends.tolist(), machine.compute, strict=True)]


def touched_rows(
    everybody: Sequence[Sequence[np.ndarray]], partition: Partition, nodes: Sequence[Sequence[int]]
) -> Touched:
    """Return means over steps of the rows that each rank touched: `everybody[r][s]`, the unique rows of rank r in step
    s; `nodes`: the ranks of each node. Local."""
    ranks, steps = range(len(everybody)), range(len(everybody[0]))

    def together(some: Sequence[int], step: int) -> np.ndarray:
        lists = [everybody[rank][step] for rank in some]
        largest = max(lists, key=len)
        return largest if len(largest) == partition.rows else np.unique(np.concatenate(lists))

    def at_owners(ids: np.ndarray) -> np.ndarray:
        return np.bincount(partition.owner_of(ids), minlength=partition.owners).astype(np.float64)

    rank_rows, all_rows = 0.0, 0.0
    node_rows = np.zeros(len(nodes))
    held, all_held = np.zeros((2, partition.owners))
    for step in steps:
        lists = [everybody[rank][step] for rank in ranks]
        united = together(ranks, step)
        rank_rows += sum(map(len, lists)) / len(lists)
        node_rows += [len(together(some, step)) if some else 0.0 for some in nodes]
        all_rows += len(united)
        held += at_owners(np.concatenate(lists))
        all_held += at_owners(united)
    count = len(steps)
    share = held / held.sum() if held.any() else np.full(partition.owners, 1 / partition.owners)
    return Touched(
        rank_rows / count,
        tuple((node_rows / count).tolist()),
        all_rows / count,
        tuple(share.tolist()),
        tuple((all_held / count).tolist()),
    )
