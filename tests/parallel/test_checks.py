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


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_cache(ranks):
    run_checks("checks_cache", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_modes(ranks):
    run_checks("checks_modes", ranks)


@pytest.mark.mpi(ranks=[1, 2, 3, 4, 5])
def test_training(ranks):
    run_checks("checks_training", ranks)
