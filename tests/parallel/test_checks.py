"""Every module of checks, on one to four ranks (five make 3 compute ranks and 2 servers): many checks per launch."""

import pytest
from launching import run_checks


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_world(ranks):
    run_checks("checks_world", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 4, 5])
def test_collectives(ranks):
    run_checks("checks_collectives", ranks)


def test_trunk_bytes_of_sixteen_ranks():
    run_checks("checks_collectives", 16, "check_trunk_bytes")


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_topology(ranks):
    run_checks("checks_topology", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_tuning(ranks):
    run_checks("checks_tuning", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_dense(ranks):
    run_checks("checks_dense", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_sparse(ranks):
    run_checks("checks_sparse", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 5])
def test_aggregation(ranks):
    run_checks("checks_aggregation", ranks)


@pytest.mark.mpi(ranks=[1, 3])
def test_behind(ranks):
    run_checks("checks_behind", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_cache(ranks):
    run_checks("checks_cache", ranks)


@pytest.mark.mpi(ranks=[1, 3, 4, 5])
def test_node_pull(ranks):
    run_checks("checks_node_pull", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_moving(ranks):
    run_checks("checks_moving", ranks)


@pytest.mark.mpi(ranks=[1, 2, 4])
def test_placement(ranks):
    run_checks("checks_placement", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_modes(ranks):
    run_checks("checks_modes", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_adaptive(ranks):
    run_checks("checks_adaptive", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_async(ranks):
    run_checks("checks_async", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_async_tables(ranks):
    run_checks("checks_async_tables", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 4, 5])
def test_training(ranks):
    run_checks("checks_training", ranks)


@pytest.mark.mpi(ranks=[1, 3])
def test_trace(ranks):
    run_checks("checks_trace", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_planning(ranks):
    run_checks("checks_planning", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_ctr(ranks):
    run_checks("checks_ctr", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_clipping(ranks):
    run_checks("checks_clipping", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_rows_wire(ranks):
    run_checks("checks_rows_wire", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_translation(ranks):
    run_checks("checks_translation", ranks, "check_equals_one_process")


def test_a_translation_job_learns():
    run_checks("checks_translation", 2, "check_the_job_learns")


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_trees(ranks):
    run_checks("checks_trees", ranks)


@pytest.mark.mpi(ranks=[1, 3])
def test_recursion(ranks):
    run_checks("checks_recursion", ranks)
