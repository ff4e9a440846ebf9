"""Topology over real ranks: pretended nodes, host names and Slurm variables; every rank hears the same, errors too."""

import os
import socket
from contextlib import contextmanager
from unittest import mock

from hybridmpi.collectives.topology import discover
from hybridmpi.errors import LaunchError, UsageError
from hybridmpi.world import World


@contextmanager
def pretended(host=None, address="", pattern=""):
    """Give this rank a host name and Slurm's variables; without them, none."""
    slurm = {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}
    with mock.patch.dict(os.environ, {name: value for name, value in slurm.items() if value}):
        for name, value in slurm.items():
            if not value:
                os.environ.pop(name, None)
        with mock.patch.object(socket, "gethostname", lambda: host or "here"):
            yield


def agreed(world, value):
    """Return `value`, which every compute rank must have alike."""
    assert world.gather(value) == [value] * len(world.clients)
    return value


def refusal(world, kind, supernodes=()):
    """Return the text of the error that every rank must raise alike."""
    try:
        topology = discover(world, supernodes)
    except kind as error:
        return agreed(world, str(error))
    raise AssertionError(f"not refused: {topology}")


def check_one_machine_is_one_node(comm):
    with World(0, comm) as world, pretended():
        topology = agreed(world, discover(world))
        assert (topology.nodes, topology.supernodes, topology.source) == (1, 1, "none")
        assert topology.places[world.rank].core == min(os.sched_getaffinity(0))
        assert topology.describe() == f"{world.size} rank{'s' * (world.size > 1)} on 1 node"


def check_slurm_groups_nodes_dealt_out_badly(comm):
    """Each rank a node, leaves in turn: s1, s0, s1, s0."""
    size, rank = comm.Get_size(), comm.Get_rank()
    with World(0, comm, nodes_of_ranks=lambda rank: rank) as world:
        leaf = f"s{1 - rank % 2}"
        with pretended(f"n{rank}", f"top.{leaf}.n{rank}", "switch.switch.node"):
            topology = agreed(world, discover(world))
        assert [(place.supernode, place.node) for place in topology.places] == [(r % 2, r) for r in range(size)]
        assert topology.supernode_names == ("s1", "s0")[:size] and topology.source == "Slurm"
        # The last rank without the variables: nobody uses them.
        with pretended(f"n{rank}", f"top.{leaf}.n{rank}" if rank < size - 1 else "", "switch.switch.node"):
            topology = agreed(world, discover(world))
        assert topology.supernodes == 1 and topology.source == "none"


def check_job_file_groups_nodes_of_two_ranks(comm):
    size, node = comm.Get_size(), comm.Get_rank() // 2
    with World(0, comm, nodes_of_ranks=lambda rank: rank // 2) as world, pretended(f"n{node:02d}.org", "s0.x", "a.b"):
        topology = agreed(world, discover(world, ["n[01-09]", "n00"]))
        assert [place[:2] for place in topology.places] == [(r // 2, r // 2) for r in range(size)]
        assert topology.source == "job file" and topology.nodes == topology.supernodes == (size + 1) // 2


def check_servers_have_no_place(comm):
    """The last rank of each node of two serves: compute ranks are world ranks 0, 2, ..."""
    rank = comm.Get_rank()
    with World("per-node", comm, nodes_of_ranks=lambda rank: rank // 2) as world, pretended(f"n{rank // 2}"):
        if not world.is_server:
            # Servers take no part, so their hosts need no list.
            lists = [f"n{world.node_of[client]}" for client in world.clients]
            topology = agreed(world, discover(world, lists))
            assert [place.node for place in topology.places] == [world.node_of[client] for client in world.clients]
            assert topology.supernode_names == tuple(lists)


def check_errors_are_the_same_on_every_rank(comm):
    size, rank = comm.Get_size(), comm.Get_rank()
    with World(0, comm) as world:
        with pretended(f"n{rank}"):
            # Every host but the last rank's is in the list.
            text = refusal(world, UsageError, [f"n[5-9,0-{size - 2}]" if size > 1 else "n5"])
            assert f"host 'n{size - 1}' of rank {size - 1} is in none of the lists; expected" in text
            assert "host 'n0' is " in refusal(world, UsageError, ["n[0-4]", "n0"])
            assert 'host list "n[", position 2' in refusal(world, UsageError, ["n["])
        if size > 1:
            # All ranks share memory, the last says that it is below another switch.
            leaf = "s1" if rank == size - 1 else "s0"
            with pretended("here", f"{leaf}.here", "switch.node"):
                text = refusal(world, LaunchError)
            assert f"ranks 0 (host 'here') and {size - 1} (host 'here') share the memory of node 0" in text
