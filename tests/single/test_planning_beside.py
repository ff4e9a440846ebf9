"""Predictions beside measurements: phases of both sides, text, JSON; rows of several ranks; links that save up."""

import json

import numpy as np
import pytest

from hybridmpi.planning.beside import PHASES, Comparison, Measured, by_phase
from hybridmpi.planning.costs import Transport
from hybridmpi.planning.drawn import touched_rows
from hybridmpi.planning.machine import Machine
from hybridmpi.planning.measured import _slowest
from hybridmpi.planning.predict import predict
from hybridmpi.planning.report import Outlook
from hybridmpi.planning.workload import Dense, Sparse, Touched, Workload
from hybridmpi.sparse.partition import Partition
from hybridmpi.training import phases

MACHINE = Machine((1, 1), (1, 1), link_rate=1e6)
TABLE = Sparse("rows", 1000, 50)
TOUCHED = Touched(100.0, (100.0, 100.0), 180.0, (0.5, 0.5), (90.0, 90.0))


def workload(**more):
    return Workload((Dense("d", (100, 50)),), (TABLE,), {"rows": TOUCHED}, 0.01, **more)


def comparison():
    outlook = Outlook(workload(units=80, unit="words"), MACHINE, Transport())
    seconds = dict.fromkeys(PHASES, 0.001)
    step = outlook.modes["ps"].seconds.step
    measured = {"ps": Measured(2 * step, seconds, {"allreduce": 0.0, "push_rows": 20_000.0})}
    return Comparison(outlook, measured, {m: "it would take 99 s" for m in ("hybrid", "allreduce", "allgather")}, 10)


def test_the_text_fits_a_terminal_and_names_what_was_left_out():
    text = str(comparison())
    assert max(map(len, text.splitlines())) <= 100
    for words in ("predicted", "measured", "0.50", "hybrid did not run: it would take 99 s", "push_rows", "20.0 kB"):
        assert words in text, text


def test_json_has_both_sides():
    found = json.loads(json.dumps(comparison().as_json(), allow_nan=False))
    entry = found["measured"]["ps"]
    assert entry["ratio"] == pytest.approx(0.5) and found["steps"] == 10
    assert entry["predicted"]["step"] == found["modes"]["ps"]["seconds"]["step"]
    assert set(entry["predicted"]["seconds"]) == set(entry["seconds"]) == set(PHASES)
    assert found["measured"]["hybrid"] == {"left_out": "it would take 99 s"}


@pytest.mark.parametrize("servers", [(1, 1), (0, 0)])
@pytest.mark.parametrize("way", ["ps", "allreduce", "allgather"])
@pytest.mark.parametrize("clip", [False, True])
def test_phases_add_up_to_the_step(servers, way, clip):
    machine = Machine((1, 1), servers)
    seconds = predict(workload(clip=clip), {"rows": way, "d": "allreduce"}, machine, Transport()).seconds
    assert sum(by_phase(seconds).values()) == pytest.approx(seconds.step)
    assert (seconds.clip > 0) == (clip and way == "ps")


def test_every_phase_of_a_step_is_compared():
    assert set(phases.PHASES) <= {name for names in PHASES.values() for name in names}


def test_ranks_wait_for_the_slowest():
    steps = [predict(workload(lag_seconds=lag), {"rows": "ps", "d": "ps"}, MACHINE, Transport()) for lag in (0, 0.5)]
    assert steps[1].seconds.step - steps[0].seconds.step == pytest.approx(0.5)


def test_a_rested_link_takes_in_a_burst():
    """What a burst saves is the time that its bytes take, once: after computing, when it has rested."""
    ways = {"rows": "allreduce", "d": "allreduce"}
    without, with_burst = (
        predict(workload(), ways, Machine((1, 1), (1, 1), link_rate=1e6, link_burst=burst), Transport()).seconds
        for burst in (None, 1e3)
    )
    assert without.allreduce - with_burst.allreduce == pytest.approx(1e3 / 1e6)
    assert without.pull == with_burst.pull and without.push == with_burst.push


def test_waiting_for_messages_is_no_work():
    """Ranks that share cores work longer; their messages do not take longer."""
    steps = [
        predict(workload(), {"rows": "ps", "d": "ps"}, Machine((1, 1), (1, 1), cores=cores, **rates), Transport())
        for rates in ({"message_seconds": 0.01}, {"message_seconds": 0.02})
        for cores in (2, 1)
    ]
    two, one, two_later, one_later = (step.seconds.pull for step in steps)
    assert one_later - one == pytest.approx(two_later - two) and one > two


def test_the_slowest_rank_counts():
    rates = [{"gather_rate": 5.0, "update_byte": 1.0}, {"gather_rate": 4.0, "update_byte": 0.5}]
    assert _slowest(rates) == {"gather_rate": 4.0, "update_byte": 1.0}


def test_rows_of_ranks_nodes_and_owners_are_counted():
    def ids(*numbers):
        return np.array(numbers, np.int64)

    # Two steps of three ranks, the first two on one node; owners hold even and odd rows.
    everybody = [[ids(0, 1), ids(2)], [ids(1, 2), ids(2)], [ids(), ids(5)]]
    found = touched_rows(everybody, Partition.even(6, 2, "cyclic"), [[0, 1], [2]])
    assert found.rank == pytest.approx((2 + 1 + 2 + 1 + 0 + 1) / 6)
    assert found.nodes == (2.0, 0.5) and found.all == (3 + 2) / 2
    assert found.at_owner == pytest.approx((4 / 7, 3 / 7))
    assert found.all_at_owner == ((2 + 1) / 2, (1 + 1) / 2)
