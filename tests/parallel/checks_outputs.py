"""What a job will write is tried on every rank before it does anything, and refused by all alike."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import hybridmpi as hm
from hybridmpi.errors import RemoteError, UsageError
from hybridmpi.training.job import CheckpointSection, MetricsSection, default_job
from hybridmpi.training.outputs import require_outputs


def found(comm, servers, directory, metrics="metrics.jsonl", trace=None, job_file=""):
    """Return what all ranks raise, None where they raise nothing."""
    job = replace(default_job("lm"), checkpoint=CheckpointSection(str(directory)), metrics=MetricsSection(str(metrics)))
    with hm.World(servers, comm=comm) as world:
        try:
            require_outputs(world, job, job_file, trace)
            mine = None
        except (UsageError, RemoteError) as error:
            assert isinstance(error, RemoteError) != world.on_root()
            mine = str(error)
        everybody = comm.allgather(mine)
        assert len(set(everybody)) == 1, everybody
    return mine


def check_every_output_is_tried(comm):
    ranks = comm.Get_size()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(comm.bcast(folder))
        if comm.Get_rank() == 0:
            for name in ("file", "job.toml"):
                (folder / name).write_text("[training]\n")
            (folder / "old.jsonl").write_text('{"kind": "run", "time": 1}\n')
        comm.Barrier()
        for servers in sorted({0, ranks // 2}):
            run = folder / f"run{servers}"
            assert found(comm, servers, run / "a" / "b", trace=run / "traces" / "t.json") is None
            assert found(comm, servers, run, folder / "old.jsonl") is None
            assert found(comm, servers, run, "") is None
            assert "checkpoint.directory = " in found(comm, servers, folder / "file", folder / "m.jsonl")
            assert "checkpoint.directory = " in found(comm, servers, folder / "file" / "x")
            assert "metrics.path: file" in found(comm, servers, run, folder / "file")
            assert "metrics.path: file" in found(comm, servers, run, folder / "file" / "x")
            assert "metrics.path: file" in found(comm, servers, run, "a")
            assert "metrics.path: file" in found(comm, servers, run, "x" * 300)
            assert "--trace" in found(comm, servers, run, trace=folder / "file")
            assert "what the command reads" in found(
                comm, servers, run, trace=folder / "job.toml", job_file=str(folder / "job.toml")
            )
            comm.Barrier()
            left = sorted(path.name for path in folder.rglob("*") if path.is_file())
            assert left == ["file", "job.toml", "old.jsonl"], left
            assert (folder / "file").read_text() == "[training]\n"
        comm.Barrier()


def check_a_folder_that_not_all_ranks_share(comm):
    """As on another host: there the same name is another folder, or a file is in the way."""
    if comm.Get_size() == 1:
        return
    here, last = os.getcwd(), comm.Get_rank() == comm.Get_size() - 1
    with tempfile.TemporaryDirectory() as mine, tempfile.TemporaryDirectory() as common:
        os.chdir(mine if last else comm.bcast(common))
        if last:
            comm.bcast(None)
        try:
            comm.Barrier()
            for servers in (0, 1):
                said = found(comm, servers, "runs")
                assert f"rank {comm.Get_size() - 1} (" in said and "not the folder of that name of rank 0" in said, said
            assert not last or not os.listdir(mine)
            comm.Barrier()
        finally:
            os.chdir(here)
