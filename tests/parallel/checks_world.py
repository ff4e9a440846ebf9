"""Roles, communicators, and what one rank knows and all must hear."""

import time

import numpy as np

import hybridmpi as hm
from hybridmpi import shared_windows
from hybridmpi.errors import HybridMPIError, RemoteError
from hybridmpi.world import World


def check_roles_and_communicators(comm):
    size = comm.Get_size()
    for servers in range(size):
        with World(servers, comm) as world:
            assert len(world.servers) == servers and len(world.clients) == size - servers
            assert (world.compute is None) == world.is_server == (world.server is not None)
            assert world.comm.Get_name() == "hybridmpi.world" and world.node.Get_name() == "hybridmpi.node"
            assert world.embedded == (servers == 0)
            if world.is_server:
                assert world.server.Get_name() == "hybridmpi.server" and world.server.Get_size() == servers
                assert world.role == f"server {world.server.Get_rank()}"
            else:
                assert world.compute.Get_name() == "hybridmpi.compute"
                assert world.role == f"compute {world.compute.Get_rank()}"
                assert (world.leaders is not None) == (world.compute.Get_rank() == 0)
        world.close()  # a second call does nothing


def check_per_node(comm):
    """Nodes of two ranks: the last rank of each full node serves."""
    with World("per-node", comm, nodes_of_ranks=lambda rank: rank // 2) as world:
        full = comm.Get_size() // 2
        assert world.servers == [2 * node + 1 for node in range(full)]
        assert world.node_of == [rank // 2 for rank in range(comm.Get_size())]
        assert world.nodes == (comm.Get_size() + 1) // 2


def check_run_returns_the_result_on_compute_ranks(comm):
    seen = []

    def main(world):
        seen.append(world.rank)
        return world.compute.Get_rank() * 10

    result = hm.run(main, servers=min(1, comm.Get_size() - 1), comm=comm)
    assert result == (seen[0] * 10 if seen else None)


def check_root_speaks_and_all_hear(comm):
    def main(world):
        rank = world.compute.Get_rank()
        assert world.from_root(lambda: {"rank": rank}) == {"rank": 0}
        big = world.from_root(lambda: np.arange(100_000))
        assert np.array_equal(big, np.arange(100_000))
        assert world.gather(f"r{rank}" * (rank + 1)) == [f"r{r}" * (r + 1) for r in range(world.compute.Get_size())]

        def fail():
            raise HybridMPIError("the file is empty")

        try:
            world.from_root(fail)
        except HybridMPIError as error:
            assert "the file is empty" in str(error)
            assert isinstance(error, RemoteError) == (rank != 0)
        else:
            raise AssertionError("an error on root was lost")
        world.barrier()

    hm.run(main, servers=0, comm=comm)


def check_waiting_ranks_sleep(comm):
    """A rank that waits for a slow one must not burn a core: its processor time stays far below the time waited."""

    def main(world):
        world.barrier()
        if world.compute.Get_rank() == 0:
            time.sleep(0.5)
        used = time.process_time()
        world.barrier()
        used = time.process_time() - used
        assert used < 0.15, used

    hm.run(main, servers=0, comm=comm)


def check_other_communicators_are_not_disturbed(comm):
    """Messages of the user on the launch communicator and those of hybridmpi on its duplicate never meet."""
    size, rank = comm.Get_size(), comm.Get_rank()
    request = comm.isend(f"from {rank}", (rank + 1) % size, tag=11)
    with World(0, comm) as world:
        world.barrier()
    assert comm.recv(source=(rank - 1) % size, tag=11) == f"from {(rank - 1) % size}"
    request.wait()


def check_a_node_without_room_for_what_its_ranks_share(comm):
    """Every rank hears what all of the node want together, and which of them wants most."""
    whole, last = 1 << 20, comm.Get_size() - 1
    with World(0, comm) as world:
        for wanted, refused in ((1 << 10, False), (1 << 20, True)):
            mine = wanted * (world.rank + 1)
            room = shared_windows._room
            shared_windows._room = lambda _: (whole - 1, whole)
            try:
                window = shared_windows.shared_window(
                    world.mpi, mine, 1, world.node, world.node, "the rows of table 'words'", "use more nodes"
                )
            except (HybridMPIError, RemoteError) as error:
                total, most = sum(wanted * (rank + 1) for rank in range(world.size)), wanted * world.size
                assert refused and str(error).startswith(f"the rows of table 'words': {total:,} bytes"), error
                assert f"{most:,} of them of rank {last}, could not" in str(error) or world.size == 1
                assert f"/dev/shm has {whole - 1:,} bytes free" in str(error) and "or use more nodes" in str(error)
                assert isinstance(error, RemoteError) == (world.rank > 0)
            else:
                assert not refused
                window.Free()
            finally:
                shared_windows._room = room
        world.barrier()
