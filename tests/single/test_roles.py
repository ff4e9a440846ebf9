"""Roles: which ranks of a world become servers."""

import pytest

from hybridmpi.errors import LaunchError, UsageError
from hybridmpi.roles import assign_servers

TWO_NODES = [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("servers", "chosen"),
    [(0, []), (1, [2]), (3, [1, 2, 5]), ("per-node", [2, 5]), ((0, 1), [0, 1]), ((4, 0), [0, 4]), ((), [])],
)
def test_servers_by_number_by_node_and_by_rank(servers, chosen):
    assert assign_servers(TWO_NODES, servers) == chosen


@pytest.mark.parametrize(
    ("servers", "error", "message"),
    [
        ((1, 1), UsageError, "a rank is named twice"),
        ((6,), LaunchError, "there is no rank 6: MPI started 6, 0 to 5"),
        ((-1, 2), UsageError, r"servers = \(-1, 2\) .*each at least 0"),
        (tuple(range(6)), LaunchError, "all 6 ranks would serve"),
        (6, LaunchError, "at least one rank must compute"),
        ("two", UsageError, 'expected "per-node" or a whole number, at least 0 or a tuple or a list'),
        (True, UsageError, 'expected "per-node"'),
        ((0.5,), UsageError, r"servers = \(0\.5,\)"),
    ],
)
def test_servers_that_cannot_be(servers, error, message):
    with pytest.raises(error, match=message):
        assign_servers(TWO_NODES, servers)
