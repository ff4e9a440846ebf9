"""What is said where ranks cannot share memory: the sum over the node, whose part is the largest, the room there is."""

from types import SimpleNamespace

import pytest

from hybridmpi import shared_windows
from hybridmpi.errors import HybridMPIError
from hybridmpi.shared_windows import Claim, no_room, shared_window

NULL = object()


class RefusedError(Exception):
    pass


class Node:
    """Three ranks, seen from the first, which wants nothing itself."""

    def __init__(self, *sizes, room):
        self.sizes, self.room = sizes, room

    def Get_rank(self):  # noqa: N802 - as mpi4py calls it
        return 0

    def allgather(self, mine):
        assert mine.size == self.sizes[0]
        return [mine, *(Claim(rank, size, self.room) for rank, size in enumerate(self.sizes[1:], 1))]


def mpi(allocate):
    return SimpleNamespace(
        Get_library_version=lambda: "Open MPI v5.0.11", COMM_WORLD=SimpleNamespace(Get_rank=lambda: 0), WIN_NULL=NULL,
        Win=SimpleNamespace(Allocate_shared=allocate, Allocate=None), Exception=RefusedError,
    )  # fmt: skip


@pytest.fixture
def room(monkeypatch):
    monkeypatch.setattr(shared_windows, "_held", [])
    monkeypatch.setattr(shared_windows, "_room", lambda _: (900, 1000))


def test_what_does_not_fit_is_refused_before_a_rank_dies_of_it(room):
    node = Node(0, 100, 850, room=(900, 1000))
    with pytest.raises(HybridMPIError, match=r"^rows: 950 bytes, 850 of them of rank 2, could not be shared"):
        shared_window(mpi(lambda *a, **k: pytest.fail("allocated")), 0, 1, node, node, "rows", "use more nodes")


def test_what_is_held_counts(room):
    """What was allocated before and not touched yet still seems to be free."""
    node, made = Node(0, 300, 300, room=(900, 1000)), SimpleNamespace(freed=False)
    assert shared_window(mpi(lambda *a, **k: made), 0, 1, node, node, "rows", "") is made
    with pytest.raises(HybridMPIError, match="rows: 600 bytes"):
        shared_window(mpi(lambda *a, **k: made), 0, 1, node, node, "rows", "")
    shared_windows._held[0] = (NULL, 600)  # it was freed
    assert shared_window(mpi(lambda *a, **k: made), 0, 1, node, node, "rows", "") is made


def test_what_mpi_itself_refuses(room):
    def refuse(size, unit, comm):
        raise RefusedError("no memory")

    node = Node(0, 1, 2, room=(900, 1000))
    with pytest.raises(HybridMPIError, match="rows: 3 bytes, 2 of them of rank 2, .*: no memory; .* has 900 bytes"):
        shared_window(mpi(refuse), 0, 1, node, node, "rows", "use more nodes")


def test_where_the_room_cannot_be_told():
    text = no_room("rows", [Claim(4, 10, None)], "/dev/shm", "", "use more nodes")
    assert text.startswith("rows: 10 bytes could not be shared by 1 rank of ") and "look at the room in /dev" in text
    assert shared_windows._room("/no/such/folder") is None


def test_another_folder_that_the_user_has_named(monkeypatch):
    monkeypatch.setenv("OMPI_MCA_osc_sm_backing_directory", "/scratch")
    assert shared_windows._folder(mpi(None)) == "/scratch"
    assert shared_windows._folder(SimpleNamespace(Get_library_version=lambda: "MPICH Version: 5.0")) == "/dev/shm"
