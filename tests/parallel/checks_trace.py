"""Timelines of steps on many ranks: every rank's track, held against what the steps' results say."""

import json
import math
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from checks_training import Regression

import hybridmpi as hm
from hybridmpi import optim
from hybridmpi.errors import HybridMPIError, RemoteError, UsageError
from hybridmpi.sparse.clocks import read_clock, show_clock

ROWS, FIRST, LAST, STEPS = 40, 3, 5, 7


def batch_of(step, rank):
    rng = np.random.default_rng([17, step, rank])
    return rng.integers(0, ROWS, 9), rng.standard_normal(9)


def traced(comm, servers, folder, steps=STEPS, last=LAST, **options):
    """Return (the trace, [this rank's results]) of a run on `comm`, each rank on a node of its own; None on servers."""

    def main(world):
        trainer = hm.Trainer(world, Regression(ROWS), optim.SGD(0.1), **options)
        trace = hm.Trace(trainer, folder / "trace.json", FIRST, last)
        results, rank = [], world.compute.Get_rank()

        def on_step(result):
            results.append(result)
            trace.step(result)

        trainer.fit((batch_of(step, rank) for step in range(steps)), steps, on_step)
        trace.finish()
        assert world.recording is None and bool(trace.said) == world.on_root()
        world.barrier()
        return json.loads((folder / "trace.json").read_text()), world.rank, results

    return hm.run(main, servers=servers, comm=comm, nodes_of_ranks=lambda rank: rank)


def tracks_of(trace):
    """Return {pid: name} and {pid: complete events}, checked as a viewer would: nested, in order, in microseconds."""
    events = trace["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    tracks = {pid: [e for e in events if e["ph"] == "X" and e["pid"] == pid] for pid in names}
    for track in tracks.values():
        open_until = []
        for e in track:
            assert e["tid"] == 0 and e["ts"] >= 0 and e["dur"] >= 0, e
            start, stop = round(e["ts"] * 1e3), round((e["ts"] + e["dur"]) * 1e3)
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or stop <= open_until[-1], e
            open_until.append(stop)
        assert [e["ts"] for e in track] == sorted(e["ts"] for e in track)
    return names, tracks


def steps_of(trace):
    """Return the steps on every compute rank's track."""
    names, tracks = tracks_of(trace)
    computing = [track for pid, track in tracks.items() if names[pid].startswith("compute")]
    return [[e["args"]["step"] for e in track if e["name"].startswith("step ")] for track in computing]


@contextmanager
def folder_of(comm):
    """A directory that all ranks know, until all have left it."""
    with tempfile.TemporaryDirectory() as mine:
        yield Path(comm.bcast(mine))
        comm.Barrier()


def check_tracks(comm):
    for servers in sorted({0, comm.Get_size() // 2}):
        with folder_of(comm) as folder:
            found = traced(comm, servers, folder, mode="ps")
            everybody = comm.gather(found, 0)
            if comm.Get_rank() == 0:
                clients = {entry[1]: entry[2] for entry in everybody if entry is not None}
                trace = next(entry[0] for entry in everybody if entry is not None)
                names, tracks = tracks_of(trace)
                roles = sorted(name.split(" (")[0] for name in names.values())
                computing = comm.Get_size() - servers
                assert roles == [f"compute {n}" for n in range(computing)] + [f"server {n}" for n in range(servers)]
                assert trace["otherData"] | {"clock_error_us": 0} == {
                    "first_step": FIRST, "last_step": LAST, "left_out": 0, "clock_error_us": 0
                }  # fmt: skip
                assert len(trace["otherData"]["clock_error_us"]) == comm.Get_size() - 1
                for pid, results in clients.items():
                    assert_client(tracks[pid], results[FIRST - 1 : LAST])
                assert_owners([e for track in tracks.values() for e in track], clients, servers or computing)


def assert_client(track, results):
    """The track of a compute rank shows the chosen steps, their phases and bytes."""
    steps = [e for e in track if e["name"].startswith("step ")]
    assert [e["args"]["step"] for e in steps] == [r.step for r in results] == list(range(FIRST, LAST + 1))
    for e, result in zip(steps, results, strict=True):
        about = e["args"]
        assert {k: v for k, v in about.items() if k not in ("step", "bytes")} == {
            k: v for k, v in result.bytes.items() if v
        }
        assert abs(e["dur"] - result.total_seconds * 1e6) < 0.1 * e["dur"] + 200
        within = [p for p in track if e["ts"] <= p["ts"] < e["ts"] + e["dur"] and p is not e]
        phases = [p for p in within if p["name"] in result.seconds and p["name"] != "pull"]
        assert {"forward", "backward", "wait", "push", "update"} <= {p["name"] for p in phases}
        assert all(p["args"]["step"] == result.step for p in within if "update" not in p["args"]), within
        for name in ("backward", "push"):
            assert abs(sum(p["dur"] for p in phases if p["name"] == name) - result.seconds[name] * 1e6) < 100
        # Fetching what is dense but lies at owners comes last, after all laps.
        in_laps = sum(p["args"]["bytes"] for p in phases)
        assert in_laps <= about["bytes"] <= in_laps + result.bytes["pull_rows"] + result.bytes["control"]


def assert_owners(events, clients, owners):
    """Each owner applies each step once, and takes the very bytes that the clients have pushed."""
    for step in range(FIRST, LAST + 1):
        mine = [e for e in events if "update" in e["args"] and e["args"].get("step") == step]
        assert len([e for e in mine if e["name"] == "update rows"]) == owners, (step, mine)
        taken = sum(e["args"]["bytes"] for e in mine if e["name"] == "take push")
        pushed = [r.bytes["push_ids"] + r.bytes["push_rows"] for rs in clients.values() for r in rs if r.step == step]
        assert taken == sum(pushed) > 0
    assert {e["args"].get("step", FIRST) for e in events} == set(range(FIRST, LAST + 1))


def check_sums_under_way(comm):
    with folder_of(comm) as folder:
        found = traced(comm, 0, folder, dense=hm.DenseOptions(algorithm="ring" if comm.Get_size() > 1 else "auto"))
        sums = [e for e in found[0]["traceEvents"] if e["ph"] in "be"]
        begun = {e["id"]: e for e in sums if e["ph"] == "b"}
        ended = {e["id"]: e for e in sums if e["ph"] == "e"}
        ranks = comm.Get_size()
        if ranks > 1:
            assert begun.keys() == ended.keys() and len(begun) >= ranks * (LAST - FIRST + 1)
            assert {e["args"]["step"] for e in begun.values()} == set(range(FIRST, LAST + 1))
            assert all(begun[one]["ts"] <= ended[one]["ts"] and begun[one]["args"]["bytes"] > 0 for one in begun)


def check_a_run_that_ends_early(comm):
    """It is written with what there is; without any of the steps, said says so."""
    for steps, expected in ((4, [3, 4]), (1, None)):
        with folder_of(comm) as folder:
            if expected is None:
                (folder / "trace.json").write_text("{}")
            found = traced(comm, comm.Get_size() // 2, folder, steps=steps)
            if found is not None and expected is not None:
                assert steps_of(found[0]) == [expected] * (comm.Get_size() - comm.Get_size() // 2)
            elif found is not None:
                assert found[0] == {}


def check_with_staleness(comm):
    """Every rank records its own steps in its own time."""
    with folder_of(comm) as folder:
        found = traced(comm, comm.Get_size() // 2, folder, mode="ps", staleness=math.inf)
        if found is not None:
            names, tracks = tracks_of(found[0])
            assert steps_of(found[0]) == [list(range(FIRST, LAST + 1))] * (comm.Get_size() - comm.Get_size() // 2)
            assert any(e["name"] == "apply push" for track in tracks.values() for e in track)


def check_a_signal_to_servers_while_clocks_are_read(comm):
    """Of servers on a node of their own, whose clock is read: neither message is taken for the other."""
    servers = comm.Get_size() // 2
    with folder_of(comm) as folder:

        def main(world):
            trainer = hm.Trainer(world, Regression(ROWS), optim.SGD(0.1))
            trainer.stop_requested = world.stop_requested if world.rank else lambda: False  # root looks at the end
            trace = hm.Trace(trainer, folder / "trace.json", FIRST, LAST)
            trainer.fit((batch_of(step, world.compute.Get_rank()) for step in range(STEPS)), STEPS, trace.step)
            trace.finish()
            if world.on_root() and servers:
                world.wait_until(world.stop_requested)
                assert trace.said.startswith("trace:"), trace.said
                errors = json.loads((folder / "trace.json").read_text())["otherData"]["clock_error_us"]
                assert errors.keys() == {f"node {world.node_of[world.servers[0]]}"}
                assert 0 <= errors.popitem()[1] < 1e6
            return trainer.step

        clients = comm.Get_size() - servers
        ended = hm.run(
            main,
            servers=tuple(range(clients, comm.Get_size())),
            comm=comm,
            nodes_of_ranks=lambda rank: int(rank >= clients) if servers else 0,
            asked_to_stop=lambda: servers > 0 and comm.Get_rank() >= clients,
        )
        assert ended == (STEPS if comm.Get_rank() < clients else None)


def check_files_that_cannot_be_written(comm):
    with folder_of(comm) as folder:

        def main(world):
            trainer = hm.Trainer(world, Regression(ROWS), optim.SGD(0.1))
            if world.on_root():
                (folder / "file").write_text("no directory")
            expected = UsageError if world.on_root() else RemoteError
            for path in (folder, folder / "file" / "trace.json"):
                try:
                    hm.Trace(trainer, path)
                except HybridMPIError as error:
                    assert isinstance(error, expected) and str(path) in str(error) and "cannot be written" in str(error)
                else:
                    raise AssertionError(path)
            try:
                hm.Trace(trainer, folder / "trace.json", 5, 4)
            except UsageError as error:
                assert "steps 5 to 4" in str(error)
            else:
                raise AssertionError("steps that go backwards")
            world.barrier()

        hm.run(main, servers=comm.Get_size() // 2, comm=comm)


def check_clocks(comm):
    """Ranks of one machine have one clock, and a clock that is set forward is found to be."""
    if comm.Get_size() == 1:
        return
    original, forward = time.perf_counter, 3.25

    def main(world):
        for shift in (0.0, forward):
            if world.rank == 0:
                reading = read_clock(world, 1)
                assert abs(reading.ahead - shift) <= reading.error + 1e-9 and reading.error < 0.1, reading
            elif world.rank == 1:
                time.perf_counter = lambda shift=shift: original() + shift
                try:
                    show_clock(world, 0)
                finally:
                    time.perf_counter = original
        world.barrier()

    hm.run(main, servers=0, comm=comm)
