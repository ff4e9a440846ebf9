"""Tuning on real ranks, one node and pretended ones: all choose alike, sums stay right, nothing is measured twice."""

import json
import shutil
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np

from hybridmpi.collectives import ALGORITHMS, AllReduce, tuning
from hybridmpi.collectives.cost import FORMULAS
from hybridmpi.collectives.selection import size_class
from hybridmpi.collectives.shared import room_for
from hybridmpi.collectives.topology import Place, Topology, discover
from hybridmpi.collectives.tuning import calibrate
from hybridmpi.errors import UsageError
from hybridmpi.world import World

LENGTHS = (1, 1000, 20_000, 300_001)

# Ranks of a node; 0: all on one.
WIDTHS = (0, 1, 2)


@contextmanager
def world_of(comm, width, servers=0):
    """Open a world with nodes of `width` ranks."""
    with World(servers, comm, nodes_of_ranks=(lambda rank: rank // width) if width else None) as world:
        yield world


def reducer(world, lengths=LENGTHS, topology=None, **options):
    """Return an AllReduce with a float32 buffer of each length."""
    reduce = AllReduce(world, sum(room_for(4 * length) for length in lengths), topology, **options)
    for length in lengths:
        reduce.allocate(length, np.float32)
    return reduce


@contextmanager
def new_folder(comm):
    """Make a folder, the same on every rank; remove it."""
    folder = Path(comm.bcast(tempfile.mkdtemp() if comm.Get_rank() == 0 else None))
    yield folder
    comm.Barrier()
    if comm.Get_rank() == 0:
        shutil.rmtree(folder)


def agreed(world, value):
    """Return `value`, which every compute rank must have alike."""
    assert world.gather(value) == [value] * len(world.clients)
    return value


def tune(world, reduce, folder, **options):
    """Calibrate; return (what was found, seconds), after looking at what must always hold."""
    world.barrier()
    started = time.perf_counter()
    found = calibrate(reduce, folder, **options)
    seconds = max(world.gather(time.perf_counter() - started))
    agreed(world, [asdict(choice) for choice in found.choices])
    if reduce.ranks > 1 and reduce.algorithm == "auto":
        sizes = sorted({size_class(buffer.mine.nbytes) for buffer in reduce.buffers()})
        assert [choice.nbytes for choice in found.choices] == sizes
        for choice in found.choices:
            assert reduce.algorithm_for(choice.nbytes) == choice.algorithm
    assert not any(reduce.sent().values()), "calibration counts as traffic"
    require_right(world, reduce)
    return found, seconds


def require_right(world, reduce):
    """Sum whole numbers, small enough for 16 bits, in every buffer, twice."""
    ranks, rank = world.compute.Get_size(), world.compute.Get_rank()
    for turn in range(2):
        for number, shared in enumerate(reduce.buffers()):
            pattern = np.arange(shared.mine.size) % 13
            shared.mine[:] = pattern + rank + turn
            reduce(shared.mine)
            expected = ranks * (pattern + turn) + ranks * (ranks - 1) // 2
            assert np.array_equal(shared.mine, expected), (reduce.nodes, reduce.algorithm, number, turn)


@contextmanager
def time_enough():
    """Let everything be measured, however crowded the machine is. What a budget does: tests/single/test_selection."""
    budget, tuning.BUDGET = tuning.BUDGET, 60.0
    try:
        yield
    finally:
        tuning.BUDGET = budget


def check_all_ranks_choose_alike_and_sum_right(comm):
    for width in WIDTHS:
        with new_folder(comm) as folder, world_of(comm, width) as world, time_enough():
            reduce = reducer(world)
            found, seconds = tune(world, reduce, folder)
            if world.on_root():
                print(f"{comm.Get_size()} ranks, {reduce.nodes} nodes: calibrated in {seconds:.3f} s", flush=True)
            if reduce.nodes > 1:
                # Ranks that hold rows cannot wait inside MPI.
                assert all(set(choice.predicted) == set(FORMULAS) for choice in found.choices)
                assert found.choices[0].measured and found.sums["shared"].seconds(1000) > 0
                assert found.network is not None
            elif reduce.ranks > 1:
                assert all(choice.algorithm == "shared" and not choice.measured for choice in found.choices)
                found, _ = tune(world, reduce, folder, afresh=True)
                assert all(set(choice.predicted) == {"shared"} for choice in found.choices)
                assert found.choices[0].measured and found.network is None
            else:
                assert found.choices == []
            reduce.close()


def check_mpi_is_a_candidate_where_others_serve(comm):
    if comm.Get_size() < 3:
        return
    for width in (0, 1):
        with new_folder(comm) as folder, world_of(comm, width, servers=1) as world:
            if not world.is_server:
                reduce = reducer(world)
                found, _ = tune(world, reduce, folder)
                assert all("mpi" in choice.predicted for choice in found.choices) and found.sums["mpi"].latency > 0
                reduce.close()


def check_a_second_job_measures_nothing(comm):
    for width in WIDTHS:
        with new_folder(comm) as folder, world_of(comm, width) as world:
            first = reducer(world)
            found, _ = tune(world, first, folder)
            first.close()
            if first.nodes == 1:
                continue  # nothing to choose between: compute ranks hold rows here
            second = reducer(world)
            again, _ = tune(world, second, folder)
            assert again.choices == found.choices and again.network is None and again.sums == {}
            second.close()

            # What the file says counts, measured or not: here something else, of which nobody would dream.
            poisoned = "two_level"
            edit(world, folder, poisoned)
            third = reducer(world)
            again, _ = tune(world, third, folder)
            assert {choice.algorithm for choice in again.choices} == {poisoned} and again.sums == {}
            # Unless it is to be measured again; then the file is new, too.
            fresh, _ = tune(world, third, folder, afresh=True)
            assert fresh.sums and read_algorithms(world, folder) == [choice.algorithm for choice in fresh.choices]
            third.close()

            # An algorithm that there is not, as after an update, and a damaged file, are measured anew.
            for spoil in (spoil_names, damage):
                spoil(world, folder)
                fourth = reducer(world)
                healed, _ = tune(world, fourth, folder)
                assert healed.sums and read_algorithms(world, folder) == [c.algorithm for c in healed.choices]
                fourth.close()


def the_file(folder):
    (file,) = folder.glob("*.json")
    return file


def edit(world, folder, algorithm):
    """Put another algorithm for every size into the file."""

    def change():
        file = the_file(folder)
        choices = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps([choice | {"algorithm": algorithm} for choice in choices]), encoding="utf-8")

    world.from_root(change)


def spoil_names(world, folder):
    """Put a name that nobody knows into the file."""
    edit(world, folder, "pigeon")


def damage(world, folder):
    """Cut the file in half."""
    world.from_root(lambda: the_file(folder).write_bytes(the_file(folder).read_bytes()[:-20]))


def read_algorithms(world, folder):
    """Return the algorithms in the file, smallest size first."""
    return world.from_root(lambda: [choice["algorithm"] for choice in json.loads(the_file(folder).read_text())])


def check_only_new_sizes_are_measured(comm):
    if comm.Get_size() == 1:
        return
    with new_folder(comm) as folder, world_of(comm, 1) as world:
        small = reducer(world, (100, 10_000))
        found, _ = tune(world, small, folder)
        small.close()
        edit(world, folder, "two_level")
        both = reducer(world, (100, 10_000, 50_000, 60_000))  # the last two are of a size
        more, _ = tune(world, both, folder)
        assert [c.algorithm for c in more.choices[:2]] == ["two_level"] * 2 and len(more.choices) == 3 and more.sums
        assert [c.measured for c in more.choices[:2]] == [c.measured for c in found.choices]
        both.close()
        # A job of other sizes has left the file's alone.
        assert read_algorithms(world, folder)[:2] == ["two_level"] * 2


def check_each_wire_and_each_placement_has_its_file(comm):
    if comm.Get_size() == 1:
        return
    with new_folder(comm) as folder:
        for width, wire in ((1, "float32"), (1, "bfloat16"), (1, "float16")):
            with world_of(comm, width) as world:
                reduce = reducer(world, (100, 20_000), wire=wire)
                found, _ = tune(world, reduce, folder)
                assert found.sums
                reduce.close()
        assert len(list(folder.glob("*.json"))) == 3


def check_a_trunk_is_measured(comm):
    """Every rank a node: in supernodes of two (the last may have one), and each a supernode of its own."""
    size = comm.Get_size()
    for width in (1, 2):
        with new_folder(comm) as folder, world_of(comm, 1) as world:
            places = tuple(Place(rank // width, rank, 0) for rank in range(size))
            names = tuple(f"s{number}" for number in range(-(-size // width)))
            reduce = reducer(world, topology=Topology(places, names, "job file"))
            found, _ = tune(world, reduce, folder)
            if size > 1:
                links = {"supernode": width == 2, "trunk": len(names) > 1}
                assert set(found.network.links) == {name for name, there in links.items() if there}
                assert all(link.latency > 0 for link in found.network.links.values()) and found.network.add > 0
            reduce.close()


def check_a_folder_that_cannot_be_written(comm):
    with new_folder(comm) as folder, world_of(comm, 1) as world:
        file = folder / "file"
        world.from_root(lambda: file.write_text("no folder"))
        for unfit in (file, file / "below"):
            reduce = reducer(world, (100,))
            found, _ = tune(world, reduce, unfit)
            assert bool(found.sums) == (reduce.ranks > 1)
            reduce.close()


def check_forced_algorithms_need_no_tuning(comm):
    for width in WIDTHS:
        with new_folder(comm) as folder, world_of(comm, width) as world:
            nodes = discover(world).nodes
            for name in ALGORITHMS if nodes > 1 else ("mpi", "shared"):
                for wire in ("float32", "bfloat16"):
                    if name == "mpi" and nodes > 1 and wire != "float32":
                        continue
                    reduce = reducer(world, algorithm=name, wire=wire)
                    found, _ = tune(world, reduce, folder)
                    assert found.choices == [] and {reduce.algorithm_for(n) for n in (4, 1 << 30)} == {name}
                    reduce.close()
            assert agreed(world, sorted(folder.iterdir())) == []


def check_wrong_names_are_refused_alike(comm):
    def refusal(**options):
        try:
            AllReduce(world, 64, **options)
        except UsageError as error:
            return agreed(world, str(error))
        raise AssertionError(f"not refused: {options}")

    for width in WIDTHS:
        with world_of(comm, width) as world:
            several = discover(world).nodes > 1
            text = refusal(algorithm="pigeon")
            assert "'pigeon'" in text and "auto, mpi, " in text and ("two_level" in text) == several
            # Shared memory ends at the node, and in one node there are no messages.
            assert "expected one of" in refusal(algorithm="shared" if several else "ring")
            assert "float32, bfloat16, float16" in refusal(wire="int8")
            if several:
                assert "cannot send float16" in refusal(algorithm="mpi", wire="float16")
