"""The modules of checks, several in one launch, which takes one to two seconds to start.

On how many ranks: 1, where all is embedded; 3, two compute ranks and a server, or one and two, and no power of two;
2, 4 and 5 where they bring what these have not: algorithms that differ by number, two pairs of ranks that each share a
node, several compute ranks with several servers (five make three and two). `make test-N` runs all on any number.
"""

import pytest
from launching import run_checks


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_world_and_choices(ranks):
    run_checks(ranks, "checks_world", "checks_topology", "checks_tuning", "checks_dense")


@pytest.mark.mpi(ranks=[1, 2, 3, 4, 5])
def test_collectives(ranks):
    run_checks(ranks, "checks_collectives")


@pytest.mark.any_mpi
def test_late_messages_and_slow_ranks():
    """Under MPI that is as late as it may be, with ranks that are slow at the worst moments; all checks are by
    `--adversary SEED`."""
    run_checks(3, "--lazy", "1", "--storm", "1", "checks_dense", "checks_sparse")


@pytest.mark.any_mpi
def test_trunk_bytes_of_sixteen_ranks():
    run_checks(16, "checks_collectives", "check_trunk_bytes")


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_tables(ranks):
    run_checks(ranks, "checks_sparse", "checks_async_tables")


@pytest.mark.mpi(ranks=[1, 3, 5])
def test_ranks_of_a_node_together(ranks):
    """Five ranks: two pairs and a rank alone; with one server, nodes of two compute ranks and of two that differ."""
    run_checks(ranks, "checks_aggregation", "checks_node_pull")


@pytest.mark.mpi(ranks=[1, 3, 5])
def test_training(ranks):
    run_checks(ranks, "checks_training", "checks_batches", "checks_misuse")


@pytest.mark.mpi(ranks=[1, 2, 3])
def test_async_and_what_goes_on_beside_steps(ranks):
    run_checks(ranks, "checks_async", "checks_trace", "checks_behind", "checks_damaged", "checks_outputs")


@pytest.mark.mpi(ranks=[1, 3, 4])
def test_cache_and_rows_that_move(ranks):
    """Two servers at most, so that four ranks are the first with several compute ranks beside several servers."""
    run_checks(ranks, "checks_cache", "checks_placement", "checks_moving")


@pytest.mark.any_mpi
@pytest.mark.mpi(ranks=[1, 3])
def test_state_of_resumed_runs(ranks):
    run_checks(ranks, "checks_state")


@pytest.mark.any_mpi
@pytest.mark.mpi(ranks=[1, 3, 4])
def test_modes(ranks):
    """Two servers at most, as for the cache."""
    run_checks(ranks, "checks_modes", "checks_adaptive")


@pytest.mark.mpi(ranks=[2, 3])
def test_large_counts(ranks):
    """One rank has nobody to send to; two and three, with one server or none."""
    run_checks(ranks, "checks_large_counts")


@pytest.mark.any_mpi
@pytest.mark.mpi(ranks=[1, 3])
def test_plans_and_rounding(ranks):
    run_checks(ranks, "checks_planning", "checks_rows_wire", "checks_clipping", "checks_agreed")


@pytest.mark.any_mpi
@pytest.mark.mpi(ranks=[2, 3])
def test_models(ranks):
    """Against one process, so that one rank would compare it with itself."""
    run_checks(ranks, "checks_ctr", "checks_translation", "checks_trees", "checks_recursion")
