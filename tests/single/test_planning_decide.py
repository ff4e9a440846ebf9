"""What is decided and why: crossovers, both sides of them, limits of memory, changes in a running job."""

from dataclasses import replace

import numpy as np
import pytest

from hybridmpi.planning.alpha import Alpha
from hybridmpi.planning.costs import Transport
from hybridmpi.planning.decide import choose_ways, copy_bytes, crossover_alpha, decide, predict_modes, ways_of_mode
from hybridmpi.planning.machine import Machine
from hybridmpi.planning.sparsity import Draws, Zipf, scaled_to
from hybridmpi.planning.workload import Dense, Sparse, Touched, Workload

MACHINE, PLAIN = Machine((2,) * 4, (1,) * 4), Transport()
TABLE = Sparse("t", 4000, 64, slots=1, draws=(Draws(Zipf(4000), 300),))
DENSE = Dense("d", (256, 256), slots=1)


def workload(*tables, dense=(), machine=MACHINE):
    return Workload(dense, tables, {t.name: Touched.expected(t, machine) for t in tables}, 0.01)


def at_alpha(table, alpha):
    return replace(table, draws=tuple(scaled_to(table.draws, alpha * table.rows)))


def at(alpha):
    return workload(at_alpha(TABLE, alpha))


def test_both_sides_of_the_crossover_are_decided_alike_everywhere():
    start = at(0.05)
    crossover = crossover_alpha(TABLE, start, ways_of_mode("hybrid", start), MACHINE, PLAIN)
    assert 0.05 < crossover < 1
    seen = set()
    for alpha in (0.02, crossover * 0.8, min(1.0, crossover * 1.2), 1.0):
        load = at(alpha)
        ways = choose_ways(load, MACHINE, PLAIN)
        decision = decide(load.tables[0], load, ways, MACHINE, PLAIN)
        assert decision.way == min(decision.seconds, key=decision.seconds.__getitem__)
        assert decision.seconds["ps"] < decision.seconds["allreduce"] if alpha < crossover else decision.way != "ps"
        assert f"{alpha:.2g}"[:3] in decision.reason or decision.way == "allgather", decision.reason
        seen.add(decision.way)
    assert "allreduce" in seen
    assert "is above the crossover" in decision.reason and "dense all-reduce" in decision.reason


def test_at_the_crossover_both_ways_take_as_long():
    start = at(0.05)
    crossover = crossover_alpha(TABLE, start, ways_of_mode("hybrid", start), MACHINE, PLAIN)
    there = start.with_touched("t", start.touched["t"].moved_to(crossover, TABLE.rows))
    seconds = decide(TABLE, there, ways_of_mode("hybrid", there), MACHINE, PLAIN).seconds
    assert np.isclose(seconds["ps"], seconds["allreduce"], rtol=1e-2)


def test_hybrid_is_never_predicted_to_be_behind():
    random = np.random.default_rng(4)
    for _ in range(8):
        nodes = int(random.integers(1, 6))
        machine = Machine((int(random.integers(1, 4)),) * nodes, (int(random.integers(0, 2)),) * nodes)
        tables = [
            Sparse(
                f"t{i}",
                rows,
                int(random.integers(1, 200)),
                slots=1,
                draws=(Draws(Zipf(rows), random.integers(1, 4000)),),
            )
            for i, rows in enumerate(random.integers(10, 20_000, 3).tolist())
        ]
        dense = (Dense("w", (int(random.integers(1, 2000)), 100)), Dense("b", (100,)))
        steps = predict_modes(workload(*tables, dense=dense, machine=machine), machine, PLAIN)
        assert all(steps["hybrid"].seconds.step <= p.seconds.step * (1 + 1e-9) for p in steps.values())


def test_nothing_sparse_and_nothing_dense():
    only_dense, only_sparse = workload(dense=(DENSE,)), at(0.02)
    assert choose_ways(only_dense, MACHINE, PLAIN) == {"d": "allreduce"}
    assert set(choose_ways(only_sparse, MACHINE, PLAIN)) == {"t"}
    assert predict_modes(only_dense, MACHINE, PLAIN)["hybrid"].bytes.counted.keys() == {"allreduce"}


def test_what_does_not_fit_into_a_rank_stays_at_owners():
    machine = Machine((2, 2), (1, 1), replica_bytes=1e6)
    load = workload(at_alpha(TABLE, 1.0), machine=machine)
    ways = choose_ways(load, machine, PLAIN)
    reason = decide(load.tables[0], load, ways, machine, PLAIN).reason
    assert ways == {"t": "ps"} and "copies on every rank take 0.0 GB with it" in reason
    # Two tables that gain by copies, and room for one: the ranks of a node share its memory.
    twins = [replace(at_alpha(TABLE, 1.0), name=name) for name in ("a", "b")]
    one = 1.5 * copy_bytes(twins[0]) * max(MACHINE.compute)
    for room, copied in ((4 * one, 2), (one, 1), (one / 2, 0)):
        machine = replace(MACHINE, replica_bytes=room)
        load = workload(*twins, machine=machine)
        for current in (None, {"a": "ps", "b": "ps"}, {"a": "allreduce", "b": "allreduce"}):
            ways = choose_ways(load, machine, PLAIN, current)
            assert sum(way != "ps" for way in ways.values()) == copied, (room, current, ways)
    alone = Machine((1,), (1,))
    load = workload(TABLE, machine=alone)
    assert choose_ways(load, alone, PLAIN) == {"t": "ps"}


def test_a_running_job_changes_only_for_a_gain_and_comes_back():
    start = at(0.05)
    crossover = crossover_alpha(TABLE, start, ways_of_mode("hybrid", start), MACHINE, PLAIN)

    def next_way(alpha, current):
        touched = start.touched["t"].moved_to(alpha, TABLE.rows)
        return choose_ways(start.with_touched("t", touched), MACHINE, PLAIN, {"t": current})["t"]

    for current in ("ps", "allreduce"):
        assert next_way(crossover, current) == current
        assert next_way(min(1.0, crossover * 1.4), current) == "allreduce"
    assert next_way(0.02, "allreduce") != "allreduce"


def test_measured_alpha_is_moved_along_a_curve_through_what_was_measured():
    touched = Touched.measured(TABLE, Alpha(0.1, 0.15, 0.3), MACHINE)
    assert np.isclose(touched.rank, 400) and np.isclose(touched.all, 1200) and set(touched.nodes) == {600.0}
    assert np.isclose(sum(touched.all_at_owner), 1200) and touched.alpha(4000) == pytest.approx((0.1, 0.15, 0.3))
    for alpha in (0.0, 0.05, 0.1, 0.5, 1.0):
        moved = touched.moved_to(alpha, TABLE.rows).alpha(4000)
        assert moved.rank == alpha and alpha <= moved.node + 1e-12 and moved.node <= moved.all + 1e-12 <= 1 + 2e-12
    assert touched.moved_to(0.1, 4000).alpha(4000) == pytest.approx((0.1, 0.15, 0.3))
    independent = Touched.measured(TABLE, Alpha(0.1, 0.19, 1 - 0.9**8), MACHINE).moved_to(0.4, 4000)
    assert np.isclose(independent.all / 4000, 1 - 0.6**8)
