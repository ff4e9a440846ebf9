"""Predictions against what ranks count: the bytes of a step on every placement, every mode of a job, the machine."""

import contextlib
import io
import itertools
import json
import shutil
import tempfile
from dataclasses import fields
from pathlib import Path

import numpy as np

from hybridmpi import optim
from hybridmpi.cli.main import main as hybridmpi
from hybridmpi.planning.costs import Transport, rows_together
from hybridmpi.planning.drawn import touched_rows
from hybridmpi.planning.machine import Machine
from hybridmpi.planning.measured import measure_machine
from hybridmpi.planning.modes import MODES
from hybridmpi.planning.predict import predict
from hybridmpi.planning.workload import Sparse, Touched, Workload
from hybridmpi.sparse.service import Service
from hybridmpi.sparse.spec import TableSpec
from hybridmpi.training.job import read_job
from hybridmpi.training.outlook import plan_job
from hybridmpi.training.run import Run
from hybridmpi.training.trial import try_modes
from hybridmpi.world import World

SIZES = {"wide": (600, 24), "narrow": (90, 1)}


def check_counted_bytes_equal_predicted_ones(comm):
    """One node, two, and every rank on one of its own; with servers, and with rows on the compute ranks."""
    size = comm.Get_size()
    placements = [lambda rank: 0, lambda rank: rank * 2 // size, lambda rank: rank]
    for nodes_of_ranks in placements:
        for servers in {0, min(2, size - 1)}:
            with World(servers, comm, nodes_of_ranks) as world:
                if not world.is_server:
                    compare(world, size, together=False)
                    compare(world, size, together=True)


def spec_of(name):
    rows, dim = SIZES[name]
    return TableSpec(name, rows, dim, np.dtype("f4"), ("constant", 0.0), "sum", "cyclic", optim.SGD(0.1), 1)


def machine_of(world):
    """The machine that a world is on, with guessed rates."""
    nodes = sorted(set(world.node_of))
    compute, servers = (
        tuple(sum(world.node_of[rank] == node for rank in ranks) for node in nodes)
        for ranks in (world.clients, world.servers)
    )
    return Machine(compute, servers)


def distinct(everybody, table, node):
    """Return how many different rows of a table the ranks of a node have."""
    ids = [gradients[table][1] for _, gradients, there in everybody if there == node]
    return float(len(np.unique(np.concatenate(ids)))) if ids else 0.0


def compare(world, size, together):
    specs = [spec_of(name) for name in SIZES]
    service = Service.open(world, specs, "message" if world.nodes > 1 else "auto")
    client, together = service.client, together and service.open_node_pull()
    client.paths = ["shared" if world.same_node(rank) else "message" for rank in world.owners]
    before = client.traffic.snapshot()
    random = np.random.default_rng(world.rank)
    gradients = []
    for table, spec in enumerate(specs):
        ids = np.sort(random.choice(spec.rows, spec.rows // 5, replace=False))
        gradients.append((table, ids, np.ones((len(ids), spec.dim), np.float32)))
    if client.node_pull is not None:
        client.node_pull.pull({table: ids for table, ids, _ in gradients})
    for table, ids, _ in gradients:
        client.pull(table, ids)
    client.push(gradients, 1.0)
    counted = {category: client.traffic.total(category) - before[category] for category in before}
    summed = any(world.gather(client.node_sum is not None))
    everybody = world.gather((counted, gradients, world.node_of[world.rank]))
    service.close()
    nodes, machine = sorted(set(world.node_of)), machine_of(world)
    tables, touched = [], {}
    for table, spec in enumerate(specs):
        ids = [gradients[table][1] for _, gradients, _ in everybody]
        owners = len(world.owners)
        at_owner = np.bincount(np.concatenate(ids) % owners, minlength=owners)
        tables.append(Sparse(spec.name, spec.rows, spec.dim))
        touched[spec.name] = Touched(
            float(np.mean([len(i) for i in ids])),
            tuple(distinct(everybody, table, node) for node in nodes),
            len(np.unique(np.concatenate(ids))),
            tuple(at_owner / at_owner.sum()),
            (0.0,) * owners,
        )
    workload = Workload((), tuple(tables), touched, 0.0)
    expected = predict(
        workload, dict.fromkeys(SIZES, "ps"), machine, Transport(local=summed, together=together)
    ).bytes.counted
    exact = {"push_ids", "push_rows", "control"} | ({"pull_rows", "aggregate"} if not together else set())
    for category in exact:
        mean = np.mean([counts[category] for counts, _, _ in everybody])
        assert np.isclose(mean, expected.get(category, 0)), (category, mean, expected)
    # Which rank's rows lie where is not in the shares of all ranks: asked for are only those on other nodes.
    for category in {"pull_ids", "pull_rows", "aggregate"} - exact:
        mean = np.mean([counts[category] for counts, _, _ in everybody])
        assert abs(mean - expected.get(category, 0)) <= 0.2 * max(expected.get(category, 0), 1), (category, mean)


def check_rows_go_together_as_planned(comm):
    """On every placement, with every option: whether ranks of a node sum their rows, and whether they pull together."""
    size = comm.Get_size()
    placements = [lambda rank: 0, lambda rank: rank * 2 // size, lambda rank: rank, lambda rank: int(rank > 0)]
    for nodes_of_ranks in placements:
        for servers in range(size):
            with World(servers, comm, nodes_of_ranks) as world:
                for aggregate in ("auto", "always", "never") if not world.is_server else ():
                    service = Service.open(world, [spec_of("narrow")], "message", aggregate=aggregate)
                    local = any(world.gather(service.client.node_sum is not None))
                    together = service.open_node_pull()
                    service.close()
                    found = rows_together(machine_of(world), aggregate)
                    assert found == (local, together), (world.node_of, servers, aggregate, found)


def check_drawn_rows_are_those_of_a_run(comm):
    """Every kind of job, with servers and without: the rows that a plan draws are the very rows that steps touch, and
    so many examples; one more sentence than ranks, and fewer examples than ranks, are dealt unevenly."""
    size = comm.Get_size()
    with small_jobs(comm) as paths:
        for path in paths:
            for servers, changes in ((size // 2, []), (0, ["sparse.partition=block", "sparse.parts=3"])):
                job = read_job(path, changes)
                with World(servers, comm, lambda rank: rank * 2 // size) as world:
                    if world.is_server:
                        continue
                    with contextlib.redirect_stdout(io.StringIO()):
                        run = Run(world, job)
                    trainer, steps = run.open_trainer(), 4
                    results, touched = [], []
                    batches = run.batches(0)
                    for _ in range(steps):
                        results.append(trainer.train_step(next(batches, None)))
                        touched.append([rows.indices for rows in trainer.exchange.gradients])
                    specs = trainer.exchange.specs
                    trainer.service.client.wait_for_version()
                    trainer.close()
                    everybody = world.gather(touched)
                    planned = plan_job(job, machine_of(world), measure=False, steps=steps)
                    assert np.isclose(planned.units, np.mean([result.examples for result in results]))
                    nodes = sorted(set(world.node_of))
                    ranks = [
                        [n for n, rank in enumerate(world.clients) if world.node_of[rank] == node] for node in nodes
                    ]
                    for number, table in enumerate(planned.tables):
                        assert (table.name, table.rows) == (specs[number].name, specs[number].rows)
                        found = [[step[number] for step in rank] for rank in everybody]
                        expected = touched_rows(found, specs[number].map(len(world.owners)), ranks)
                        assert planned.touched[table.name] == expected, (job.model.kind, table.name, servers)


def check_a_machine_is_measured(comm):
    """One node, and every rank on one of its own: all constants that the world has, alike on every rank."""
    size = comm.Get_size()
    for nodes_of_ranks, servers in (
        (lambda rank: 0, size // 2),
        (lambda rank: rank, size // 2),
        (lambda rank: rank, 0),
    ):
        with World(servers, comm, nodes_of_ranks) as world:
            if world.is_server:
                continue
            machine = measure_machine(world)
            assert len(set(world.gather(machine))) == 1
            assert sum(machine.compute) == size - servers and sum(machine.servers) == servers
            assert machine.cores is None or 0 < machine.cores < size - servers
            guessed = Machine(machine.compute, machine.servers)
            measured = {f.name for f in fields(Machine) if getattr(machine, f.name) != getattr(guessed, f.name)}
            expected = {"memory_rate", "gather_rate", "update_byte", "aggregate_row", "notice_seconds"}
            if world.nodes > 1:
                expected |= {"message_seconds"}
            if len({world.node_of[rank] for rank in world.clients}) > 1:
                expected |= {"latency", "link_rate"}
            assert expected <= measured, expected - measured
            # A rate of memory, and a time of messages.
            assert 1e8 < machine.gather_rate < 1e12 and machine.notice_seconds < 0.1


@contextlib.contextmanager
def small_jobs(comm):
    """The paths of job files that all ranks see, one of each kind."""
    folder = comm.bcast(tempfile.mkdtemp() if comm.Get_rank() == 0 else None)
    path = Path(folder, "job.toml")
    if comm.Get_rank() == 0:
        words = " ".join(f"w{(i * i) % 61}" for i in range(3000))
        Path(folder, "text.txt").write_text("\n".join(words[i : i + 80] for i in range(0, len(words), 80)))
        model = "[model]\nwidth = 16\nhidden = 24\nsamples = 20\n"
        data = f'[data]\nstreams = 8\nsteps = 5\nvocabulary = 500\nsource = "{folder}/text.txt"\ncache = "{folder}"\n'
        path.write_text(f"{model}{data}")
        sizes = "divide = 200000\nbatch = 41\nheld_out = 0\n"
        Path(folder, "ctr.toml").write_text(f'[model]\nkind = "ctr"\nbottom = [8]\ntop = [8]\n\n[data]\n{sizes}')
        for side in (1, 2):
            lines = (" ".join(f"w{(i * j * side) % 31}" for j in range(1 + i % 6)) for i in range(400))
            Path(folder, f"text.{side}").write_text("\n".join(lines) + "\n")
        model = '[model]\nkind = "nmt"\nwidth = 8\nhidden = 6\nsamples = 5\n'
        data = f'[data]\nsource = "{folder}/text.1"\ntarget = "{folder}/text.2"\ncache = "{folder}"\nsentences = 5\n'
        Path(folder, "nmt.toml").write_text(f"{model}{data}")
    comm.Barrier()
    yield [path, Path(folder, "ctr.toml"), Path(folder, "nmt.toml")]
    comm.Barrier()
    if comm.Get_rank() == 0:
        shutil.rmtree(folder)


def check_every_mode_moves_the_predicted_bytes(comm):
    """Every rank on a node of its own, with servers; two nodes, whose ranks hold the rows and sum them in the node: all
    categories of all modes within 2 %."""
    size = comm.Get_size()
    with small_jobs(comm) as paths:
        for path, (nodes_of_ranks, servers) in itertools.product(
            paths, ((lambda rank: rank, size // 2), (lambda rank: rank * 2 // size, 0))
        ):
            # MPI's own sums, which "auto" may take, are not counted.
            job = read_job(path, ["allreduce.algorithm=ring"] if size - servers > 1 else [])
            with World(servers, comm, nodes_of_ranks) as world:
                if world.is_server:
                    continue
                with contextlib.redirect_stdout(io.StringIO()):
                    # What runs is decided by one rank: by another one's limit nothing would.
                    found = try_modes(world, job, 2, 60.0 if world.on_root() else 1e-12)
                assert set(found.measured) | set(found.left_out) == set(MODES)
                # A table is not copied to the only compute rank.
                assert len(found.measured) == (4 if len(world.clients) > 1 else 2), found.left_out
                for mode, measured in found.measured.items():
                    predicted = found.outlook.modes[mode].bytes.counted
                    for category, counted in measured.bytes.items():
                        expected = predicted.get(category, 0.0)
                        assert abs(counted - expected) <= 0.02 * expected + 1, (mode, category, expected, counted)
                if size == 4 and not servers:
                    assert found.measured["ps"].bytes["aggregate"] > 0
                    assert measured.step > 0 and measured.seconds["compute"] > 0


def check_the_command_prints_every_mode(comm):
    """`hybridmpi plan JOB --json` under mpirun, on one node; a mode above the limit is left out and named."""
    if comm.Get_size() == 1:
        return
    with small_jobs(comm) as (path, *_):
        for limit in ("60", "1e-9"):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                assert hybridmpi(["plan", str(path), "--set", "allreduce.algorithm=shared", "--set", "world.servers=0",
                                  "--steps", "2", "--limit", limit, "--json"]) == 0  # fmt: skip
            if comm.Get_rank():
                continue
            found = json.loads(out.getvalue().splitlines()[-1])
            assert set(found["measured"]) == set(found["modes"]) == set(MODES)
            for mode, entry in found["measured"].items():
                if limit == "60":
                    assert np.isclose(entry["ratio"], found["modes"][mode]["seconds"]["step"] / entry["step"])
                    sums = [side.get("allreduce", 0) for side in (entry["bytes"], entry["predicted"]["bytes"])]
                    assert abs(sums[0] - sums[1]) <= 0.02 * sums[0], (mode, sums)
                else:
                    assert "--limit" in entry["left_out"]
