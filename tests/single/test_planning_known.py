"""The machine that is kept between runs: asked for by the same hosts, ranks and servers only, and measured anew where
what is kept is damaged."""

from types import SimpleNamespace

import pytest

from hybridmpi.planning.known import known_machine
from hybridmpi.planning.machine import Machine


def world_of(node_of=(0, 0, 1), servers=(), version="MPI 1"):
    return SimpleNamespace(
        gather=lambda value: [value] * len(node_of),
        from_root=lambda function: function(),
        mpi=SimpleNamespace(Get_library_version=lambda: version + "\0"),
        node_of=list(node_of),
        servers=list(servers),
    )


def test_a_machine_is_measured_once_for_each_world(tmp_path):
    measured = []

    def measure(world):
        measured.append(world)
        return Machine((2, 1), (0, 0), link_rate=1e6 * len(measured))

    worlds = [
        world_of(),
        world_of(node_of=(0, 1, 1)),
        world_of(servers=(2,)),
        world_of(node_of=(0, 0, 1, 1)),
        world_of(version="MPI 2"),
    ]
    first = [known_machine(world, measure, tmp_path) for world in worlds]
    assert measured == worlds and len({machine.link_rate for machine in first}) == len(worlds)
    assert [known_machine(world, measure, tmp_path) for world in worlds] == first
    assert measured == worlds


@pytest.mark.parametrize("damage", [b"", b"\0" * 40, b"[]", b"null", b'{"compute": [1]}', b'{"no": 1}', b"\xff"])
def test_damaged_it_is_measured_anew(tmp_path, damage):
    machine = known_machine(world_of(), lambda world: Machine((2, 1), (0, 0)), tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage)
    other = Machine((2, 1), (0, 0), link_rate=5e5)
    assert known_machine(world_of(), lambda world: other, tmp_path) == other != machine
