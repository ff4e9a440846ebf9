"""Bytes and seconds of a step: against the published table, loops over all pairs, and the messages themselves."""

import numpy as np
import pytest

from hybridmpi.errors import UsageError
from hybridmpi.planning import traffic
from hybridmpi.planning.costs import Transport, add_parameter, add_step, no_cost
from hybridmpi.planning.machine import Machine
from hybridmpi.planning.predict import predict
from hybridmpi.planning.rates import measure_rates
from hybridmpi.planning.workload import Dense, Sparse, Touched, Workload
from hybridmpi.sparse.forms import Form
from hybridmpi.sparse.node_memory import Share, shares_of
from hybridmpi.sparse.requests import Question, pack_request
from hybridmpi.sparse.wire import Outgoing, Sender, pack_push

# A machine of which the links are all that counts.
ONLY_LINKS = {
    "latency": 1e-15, "message_seconds": 1e-15, "near_message_seconds": 1e-15, "notice_seconds": 1e-15,
    "memory_rate": 1e24, "node_memory_rate": 1e24, "gather_rate": 1e24, "aggregate_row": 1e-24,
    "aggregate_byte": 1e-24, "update_byte": 1e-24,
}  # fmt: skip


def links_only(compute, servers, rate=1e6):
    return Machine.calibrated(compute, servers, link_rate=rate, **ONLY_LINKS)


def one_table(machine, alpha, everybody=None, rows=1000, dim=256, share=None):
    table = Sparse("t", rows, dim)
    share = share or (1 / machine.owners,) * machine.owners
    everybody = alpha if everybody is None else everybody
    nodes = tuple(alpha * rows if n else 0.0 for n in machine.compute)
    touched = Touched(alpha * rows, nodes, everybody * rows, share, tuple(everybody * rows * s for s in share))
    return table, Workload((), (table,), {"t": touched}, 0.0)


def step_of(workload, way, machine, transport=Transport()):  # noqa: B008 - frozen
    return predict(workload, {p.name: way for p in workload.parameters}, machine, transport)


def total(by_phase):
    return sum(by_phase.values())


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_table_2_of_the_paper(nodes):
    """Sends and receives per machine, one worker and one server on each: 4 alpha w (N - 1) / N of rows by servers,
    2 alpha w (N - 1) by all-gather, 4 w (N - 1) / N dense."""
    alpha, machine = 0.1, links_only((1,) * nodes, (1,) * nodes)
    table, workload = one_table(machine, alpha)
    w, ids = table.bytes, 8 * alpha * table.rows
    ps = step_of(workload, "ps", machine).bytes
    headers = 2 * (nodes - 1) * (8 + 24 + 8 + 48 + 16)
    rows = total(ps.node_in) + total(ps.node_out) - 4 * ids * (nodes - 1) / nodes - headers
    assert np.isclose(rows, 4 * alpha * w * (nodes - 1) / nodes)
    gathered = step_of(workload, "allgather", machine).bytes
    assert np.isclose(total(gathered.node_in) + total(gathered.node_out), 2 * (alpha * w + ids) * (nodes - 1))
    summed = step_of(workload, "allreduce", machine).bytes
    assert np.isclose(total(summed.node_in) + total(summed.node_out), 4 * w * (nodes - 1) / nodes)
    assert np.isclose(summed.counted["allreduce"], traffic.allreduce(w, nodes))
    dense = Workload((Dense("d", (table.rows, 256)),), (), {}, 0.0)
    assert np.isclose(total(step_of(dense, "allreduce", machine).bytes.node_in), 2 * w * (nodes - 1) / nodes)
    by_owners = step_of(dense, "ps", machine).bytes  # the same bytes as summed, and row ids
    assert np.isclose(total(by_owners.node_in), 2 * (w + 8 * table.rows * 3 / 4) * (nodes - 1) / nodes, rtol=1e-2)


def by_pairs(machine, touched, table, local, wire):
    """Bytes into and out of every node, and within it, by looking at each pair of a client and an owner."""
    into, out, within = (np.zeros(machine.nodes) for _ in range(3))

    def move(source, target, size, far_size):
        if source == target:
            within[source] += size
        else:
            out[source] += far_size
            into[target] += far_size

    homes = machine.owner_nodes
    for node, clients in enumerate(machine.compute):
        for _ in range(clients):
            for owner, home in enumerate(homes):
                rows = touched.rank * touched.at_owner[owner]
                if home != node and local:
                    within[node] += rows * 8 * (clients > 1)
                    continue
                move(home, node, rows * table.row_bytes, rows * table.row_bytes * wire)
                if home != node and rows:
                    move(node, home, 0, rows * 8 + 8 + 24)
                    move(home, node, 0, 8)
        far = [owner for owner, home in enumerate(homes) if home != node]
        for place, first, last in [s for r in range(clients) for s in shares_of(len(far), clients, r)] if local else []:
            rows = touched.nodes[node] * touched.at_owner[far[place]] * (last - first) / clients
            move(homes[far[place]], node, 0, rows * table.row_bytes * wire)
            move(node, homes[far[place]], 0, rows * 8 + (8 + 24) * (rows > 0))
            move(homes[far[place]], node, 0, 8 * (rows > 0))
            within[node] += rows * (8 + table.row_bytes) * (clients > 1)
        pushed = touched.nodes[node] if local else touched.rank
        for rank in range(clients):
            every = [Share(owner, 0, clients) for owner in range(len(homes))]
            for owner, first, last in shares_of(len(homes), clients, rank) if local else every:
                rows = pushed * touched.at_owner[owner] * (last - first) / clients
                size = rows * 8 + 48 + (16 if rows else 0)
                move(node, homes[owner], rows * table.row_bytes + size, rows * table.row_bytes * wire + size)
    return into, out, within


@pytest.mark.parametrize("compute, servers", [((2, 1), (1, 1)), ((3, 2, 0), (0, 1, 2)), ((2, 1), (0, 0)), ((4,), (1,))])
@pytest.mark.parametrize("local, wire", [(False, "float32"), (True, "bfloat16")])
def test_loads_equal_sums_over_all_pairs(compute, servers, local, wire):
    machine = links_only(compute, servers)
    share = np.arange(machine.owners) + (machine.owners == 1)  # one of several owners has no row
    touched = Touched(
        40.0,
        tuple(40.0 * n**0.8 if n else 0.0 for n in compute),
        100.0,
        tuple(share / share.sum()),
        (0.0,) * len(share),
    )
    table = Sparse("t", 500, 12)
    cost = no_cost(machine)
    add_parameter(cost, table, "ps", touched, machine, Transport(local=local, row_wire=wire, together=local))
    add_step(cost, machine, True, Transport(local=local, row_wire=wire, together=local))
    expected = by_pairs(machine, touched, table, local, 0.5 if wire == "bfloat16" else 1.0)
    phases = [cost["pull"], cost["push"]]
    for link, there in zip(("into", "out", "within"), expected, strict=True):
        assert np.allclose(sum(getattr(load, link) for load in phases), there), link
    for side, there in (("owner_in", expected[0]), ("owner_out", expected[1])):
        assert sum(getattr(load, side) for load in phases).sum() <= there.sum()
    counted = sum(sum(load.counted.values()) for load in phases)
    assert np.isclose(counted * machine.ranks, expected[1].sum() + expected[2].sum())


def test_a_node_asks_for_all_tables_at_once():
    machine = links_only((2, 1), (1, 1))
    touched = Touched(40.0, (70.0, 40.0), 100.0, (0.5, 0.5), (0.0, 0.0))
    for together, heads in ((True, 2 + 2), (False, 2 * 3)):
        transport = Transport(local=together, together=together)
        cost = no_cost(machine)
        for name in "ab":
            add_parameter(cost, Sparse(name, 500, 12), "ps", touched, machine, transport)
        # Each rank asks the owner on the other node: those of the first node for both tables at once.
        assert cost["pull"].counted["control"] * machine.ranks == 3 * 2 * 24 + heads * (8 + 8)


def test_servers_on_links_of_their_own_win_below_the_paper_s_bound():
    """alpha < S (W - 1) / W^2 for W workers and S servers; row ids are left out by wide rows."""
    for workers, servers in ((8, 1), (8, 2), (4, 4), (16, 8)):
        machine = links_only((1,) * workers + (0,) * servers, (0,) * workers + (1,) * servers)
        bound = servers * (workers - 1) / workers**2
        for alpha, server_wins in ((bound * 0.97, True), (min(1.0, bound * 1.03), False)):
            _, workload = one_table(machine, alpha, dim=1 << 16)
            ps, dense = (step_of(workload, way, machine).seconds.step for way in ("ps", "allreduce"))
            assert (ps < dense) == server_wins, (workers, servers, alpha)


@pytest.mark.parametrize("slot", [200, 1000, 8 << 20])
def test_push_messages_are_what_pack_push_packs(slot):
    random = np.random.default_rng(3)
    for _ in range(20):
        tables = [(int(random.integers(0, 60)), int(random.integers(1, 9)) * 4) for _ in range(3)]
        pieces = [
            Outgoing(t, np.arange(n), slice(0, n), np.zeros((n, size // 4), np.float32), Form(np.dtype("f4")))
            for t, (n, size) in enumerate(tables)
            if n
        ]
        message, found, done = np.zeros(slot, np.uint8), np.zeros(4, int), False
        while not done:
            _, done, sent = pack_push(message, 0, Sender(1, 1.0, 1.0), pieces)
            found += (sent.control, sent.ids, sent.rows, 1)
        assert traffic.push(tables, slot) == tuple(found)


@pytest.mark.parametrize("slots", [(200, 300), (1000, 400), (8 << 20, 8 << 20)])
def test_pull_messages_are_what_pack_request_packs(slots):
    random, (request, reply) = np.random.default_rng(4), slots
    for _ in range(20):
        tables = [(int(random.integers(0, 60)), int(random.integers(1, 9)) * 4) for _ in range(3)]
        questions = [
            Question(t, np.arange(n), slice(0, n), np.zeros((n, size // 4), np.float32), Form(np.dtype("f4")))
            for t, (n, size) in enumerate(tables)
        ]
        message, found = np.zeros(request, np.uint8), np.zeros(4, int)
        while any(question.left for question in questions):
            size, parts = pack_request(message, reply, questions)
            rows = [part.last - part.first for part in parts]
            heads = 8 + 24 * len(parts)
            assert size == heads + 8 * sum(rows)
            found += (
                heads + 8,
                8 * sum(rows),
                sum(n * p.question.row_bytes for n, p in zip(rows, parts, strict=True)),
                1,
            )
        assert traffic.pull(tables, request, reply) == tuple(found)


def test_numbers_of_nodes_that_are_no_power_of_two_cost_a_fold():
    assert traffic.allreduce_by("ring", 100, 5) == traffic.allreduce(100, 5)
    assert traffic.allreduce_by("recursive_doubling", 100, 4) == 200
    assert traffic.allreduce_by("recursive_doubling", 100, 3) == (2 * 100 + 2 * 100) / 3
    assert traffic.allreduce_by("halving_doubling", 100, 8) == traffic.allreduce(100, 8)
    assert np.isclose(traffic.allreduce_by("halving_doubling", 100, 6), (2 * 2 * 100 + 2 * 100 * 3) / 6)


def test_seconds_add_up_where_phases_follow_and_overlap_at_the_owners():
    machine = Machine((2, 2), (1, 1))
    table, workload = one_table(machine, 0.05)
    dense = Dense("d", (1 << 20,), slots=1)
    both = Workload((dense,), (table,), workload.touched, 0.02)
    s = predict(both, {"d": "allreduce", "t": "ps"}, machine, Transport()).seconds
    assert s.server > 0 and s.allreduce > s.server
    assert np.isclose(s.step, s.pull + s.compute + s.agree + s.push + s.allreduce + s.update)
    with pytest.raises(UsageError, match="'t': rows touched at 2 owners, and the machine has 4"):
        predict(both, {"d": "allreduce", "t": "ps"}, Machine((2, 2), (0, 0)), Transport())
    embedded = Machine((2, 2), (0, 0))
    there = Workload((dense,), (table,), one_table(embedded, 0.05)[1].touched, 0.02)
    embedded = predict(there, {"d": "allreduce", "t": "ps"}, embedded, Transport()).seconds
    assert np.isclose(
        embedded.step,
        embedded.pull + 0.02 + embedded.agree + embedded.push + embedded.server + embedded.allreduce + embedded.update,
    )
    hidden = predict(Workload((dense,), (), {}, 0.02, hidden_seconds=0.01), {"d": "allreduce"}, machine, Transport())
    shown = predict(Workload((dense,), (), {}, 0.02), {"d": "allreduce"}, machine, Transport())
    assert np.isclose(shown.seconds.step - hidden.seconds.step, 0.01)
    crowded = Machine((2, 2), (1, 1), cores=2)
    assert predict(both, {"d": "allreduce", "t": "ps"}, crowded, Transport()).seconds.compute == 0.04


def test_narrow_wires_halve_rows_and_sums_between_nodes_but_no_ids():
    machine = links_only((1, 1), (1, 1))
    table, workload = one_table(machine, 0.5, dim=32)
    wide = step_of(workload, "ps", machine).bytes.counted
    narrow = step_of(workload, "ps", machine, Transport(row_wire="bfloat16")).bytes.counted
    assert narrow["push_ids"] == wide["push_ids"] and narrow["control"] == wide["control"]
    assert np.isclose(narrow["push_rows"], wide["push_rows"] * 3 / 4)  # half of the rows stay on their node, whole
    summed = step_of(workload, "allreduce", machine, Transport(dense_wire="float16")).bytes.counted
    assert np.isclose(summed["allreduce"], table.bytes / 2)


def test_calibrated_machines_take_measured_numbers():
    machine = Machine.calibrated((1, 1), (1, 1), [(8, 1e-4), (1 << 20, 1e-4 + (1 << 20) / 1e8)], gather_rate=3e9)
    assert np.isclose(machine.link_rate, 1e8, rtol=1e-3) and machine.gather_rate == 3e9
    assert np.isclose(machine.latency, 1e-4, rtol=1e-2)
    with pytest.raises(UsageError, match="unknown constant 'gather'"):
        Machine.calibrated((1,), (1,), gather=3)
    with pytest.raises(UsageError, match="expected two sizes"):
        Machine.calibrated((1,), (1,), [(8, 1.0)])
    with pytest.raises(UsageError, match="link_rate = 0"):
        Machine.calibrated((1,), (1,), link_rate=0)
    with pytest.raises(UsageError, match="at least one compute rank"):
        Machine((0, 0), (1, 1))


def test_this_processor_s_rates_make_a_machine():
    machine = Machine.calibrated((1,), (1,), **measure_rates())
    assert 1e8 < machine.gather_rate < 1e12 and 1e8 < machine.memory_rate < 1e12
    assert 1e-10 < machine.aggregate_row < 1e-5 and 1e-12 < machine.update_byte < 1e-7
