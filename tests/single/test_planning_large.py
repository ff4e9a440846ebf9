"""Plans for more nodes and ranks than are looked at one by one: nodes of a kind as one."""

import dataclasses
import math
from itertools import islice, product

import pytest

from hybridmpi import data
from hybridmpi.models.lm import LanguageModel
from hybridmpi.planning import machine as machines
from hybridmpi.planning.costs import WAYS, Transport
from hybridmpi.planning.drawn import describe_model, draw_steps
from hybridmpi.planning.machine import Machine
from hybridmpi.planning.predict import predict
from hybridmpi.planning.workload import Workload

ROWS, STREAMS, LENGTH, STEPS = 3000, 96, 10, 12
TRANSPORTS = [Transport(), Transport(local=True), Transport(local=True, together=True, row_wire="bfloat16")]


def steps_of(ranks, looked_at):
    model = LanguageModel(ROWS, 4, 6, 40)
    batches = [list(islice(data.ZipfStreams(ROWS, 1.0, STREAMS, LENGTH, 5, rank, ranks), STEPS)) for rank in looked_at]
    return model, draw_steps(model, batches, seed=3)


def machine_of(nodes, embedded):
    """Nodes of two kinds, in no order: two or three compute ranks on each, a server on each or none."""
    compute = tuple(2 + (node * 7 % 5 < 2) for node in range(nodes))
    return Machine(compute, (0,) * nodes if embedded else (1,) * nodes)


@pytest.mark.parametrize("embedded", [False, True])
def test_nodes_of_a_kind_cost_what_one_of_them_does(monkeypatch, embedded):
    """Against every node looked at by itself: seconds and bytes, for every way and transport."""
    exact = machine_of(30, embedded)
    model, drawn = steps_of(exact.ranks, range(exact.ranks))
    monkeypatch.setattr(machines, "EACH_NODE", 8)
    grouped = dataclasses.replace(exact, cores=float(10 * exact.ranks))  # another object: `kinds` is kept
    assert len(grouped.kinds.node) == 2 and grouped.kinds.count.sum() == 30
    monkeypatch.setattr(machines, "EACH_NODE", 64)
    assert len(exact.kinds.node) == 30
    dense, tables = describe_model(model, 1)
    workload = Workload(dense, tables, {t.name: drawn.touched(t, exact) for t in tables}, 0.01, clip=True)
    for way, transport in product(WAYS, TRANSPORTS):
        ways = {p.name: way for p in tables} | {p.name: "ps" if way == "ps" else "allreduce" for p in dense}
        one, other = (predict(workload, ways, machine, transport) for machine in (exact, grouped))
        assert math.isclose(one.seconds.step, other.seconds.step, rel_tol=0.1), (way, transport)
        for key in one.bytes.counted:
            assert math.isclose(one.bytes.counted[key], other.bytes.counted[key], rel_tol=0.03), (way, transport, key)
        for side in ("node_in", "node_out", "within"):
            for phase, most in getattr(one.bytes, side).items():
                found = getattr(other.bytes, side)[phase]
                assert math.isclose(most, found, rel_tol=0.25), (way, transport, side, phase)


def test_every_node_by_itself_is_a_kind_of_one():
    machine = machine_of(5, embedded=False)
    assert machine.kinds.of_node.tolist() == list(range(5)) and (machine.kinds.count == 1).all()
    assert (machine.kinds.far == machine.kinds.is_far).all()
