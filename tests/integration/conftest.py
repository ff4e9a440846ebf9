"""What several files of whole runs share."""

import pytest
from slurm_cluster import SlurmCluster, reason_against


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A Slurm of four nodes, up in a third of a second, for one file: others have emulated clusters of their own."""
    if reason := reason_against():
        pytest.skip(f"no Slurm here: {reason}")
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster
