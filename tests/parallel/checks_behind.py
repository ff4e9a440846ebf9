"""Checkpoints written behind: what is in them, and what becomes of a failure in a thread."""

import itertools
import os
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

from checks_training import RULES, Regression, examples_of, model_of, server_counts, streams_for
from disk import Disk

import hybridmpi as hm
from hybridmpi.checkpoint import behind, files, newest, verify
from hybridmpi.checkpoint import write as checkpoint_write
from hybridmpi.checkpoint.manifest import read_manifest
from hybridmpi.checkpoint.owner import OWNER_FILE
from hybridmpi.errors import CheckpointError, HybridMPIError


def check_a_checkpoint_written_behind_holds_the_step_it_was_asked_at(comm):
    """Every file of it has the digest of the one that was written at once, and the steps meanwhile change nothing."""
    folder = comm.bcast(tempfile.mkdtemp() if comm.Get_rank() == 0 else None)

    def main(world, mode):
        root = Path(folder, f"{len(world.servers)}-{mode}")
        trainer = hm.Trainer(world, model_of("full"), RULES[3], mode=mode)
        batches = (b if b.inputs.size else None for b in streams_for(world))
        trainer.fit(batches, 2)
        assert trainer.saved() is None
        at_once = trainer.save(root / "at once", meta={"note": "two", "list": [1]}, words=["a", "é"])
        meta, words, changed = {"note": "two", "list": [1]}, ["a", "é"], threading.Event()
        real = checkpoint_write.write_file

        def write_late(*arguments):
            assert changed.wait(60)
            return real(*arguments)

        with patch.object(checkpoint_write, "write_file", write_late):
            behind = trainer.save(root / "behind", meta=meta, words=words, behind=True)
            meta["list"].append(2)  # what is the caller's may change meanwhile
            words.append("later")
            trainer.fit(batches, 3)
            changed.set()
            assert trainer.saved() == behind
        assert trainer.saved() is None
        one, other = (world.from_root(lambda path=path: read_manifest(path)) for path in (at_once, behind))
        assert one["files"] == other["files"] and one["tables"] == other["tables"] and one["meta"] == other["meta"]
        trainer.fit(batches, 4)
        trainer.save(root / "behind", keep=1, behind=True)  # into the memory of the first
        final = trainer.save(root / "at once", keep=1)
        trainer.save(root / "behind", keep=1, behind=True)  # the same step again, and left to close
        trainer.close()
        world.barrier()
        assert world.from_root(lambda: newest(root / "behind").name) == final.name == "step-00000004"
        assert world.from_root(lambda: sorted(os.listdir(root / "behind" / final.name))) == sorted(os.listdir(final))
        assert world.from_root(lambda: verify(root / "behind")) == []

    for servers, mode in itertools.product(server_counts(comm), ("hybrid", "allreduce")):
        hm.run(lambda w, m=mode: main(w, m), servers=servers, comm=comm)
    comm.Barrier()
    if comm.Get_rank() == 0:
        shutil.rmtree(folder)


def check_what_fails_behind_is_raised_on_all_ranks(comm):
    """At the next step if the word of it got through, at the latest when somebody waits for the checkpoint."""
    folder = comm.bcast(tempfile.mkdtemp() if comm.Get_rank() == 0 else None)
    write = files.write_file

    def main(world, owner, told):
        trainer = hm.Trainer(world, model_of("full"), RULES[3])
        batches = (b if b.inputs.size else None for b in streams_for(world))
        trainer.fit(batches, 1)
        trainer.save(folder, behind=True)
        try:
            if told:
                for step in range(2, 1000):
                    trainer.fit(batches, step)
                    time.sleep(0.01)
            trainer.saved()
        except HybridMPIError as error:
            assert "no space left" in str(error), error
            if told:
                again = False
                with suppress(HybridMPIError):
                    again = bool(trainer.saved())
                assert not again, "a second look finds nothing wrong"
        else:
            raise AssertionError("nothing was raised")
        assert world.from_root(lambda: newest(folder)) is None
        # There is room again, and training goes on.
        trainer.fit(batches, trainer.step + 1)
        again = trainer.save(folder, behind=True)
        assert trainer.saved() == again
        assert world.from_root(lambda: verify(folder)) == []
        world.from_root(lambda: shutil.rmtree(folder))

    def fail(directory, name, *rest):
        if name == failing and not failed:
            failed.append(name)
            raise CheckpointError(f"{name}: no space left")
        return write(directory, name, *rest)

    def say_nothing(*what):
        if len(failed) == 1:
            failed.append(what)
            raise OSError("no space left for this either")
        leave(*what)

    leave = behind.leave
    for servers, failing, told in (
        (0, f"server-{comm.Get_size() - 1:03d}.h5", True),
        (server_counts(comm)[-1], "server-000.h5", False),
        (0, "dense.h5", True),
    ):
        failed = []
        checkpoint_write.write_file = fail
        behind.leave = leave if told else say_nothing
        try:
            hm.run(lambda w, f=failing, t=told: main(w, f, t), servers=servers, comm=comm)
        finally:
            checkpoint_write.write_file, behind.leave = write, leave


def check_a_save_behind_that_fails_leaves_nothing_behind(comm):
    """On one rank there is no memory for its copies: all hear of it, and none of them takes it for written."""
    folder = Path(comm.bcast(tempfile.mkdtemp() if comm.Get_rank() == 0 else None))
    copies, write = behind.Behind.copies, files.write_file

    def refuse(self, of, arrays):
        if of == refused and not failed and (of == "parameters" or comm.Get_rank() == comm.Get_size() - 1):
            failed.append(of)
            raise MemoryError(of)
        return copies(self, of, arrays)

    def slowly(directory, *rest):
        time.sleep(0.3 * (directory.parent.name == "b"))
        return write(directory, *rest)

    def main(world):
        trainer = hm.Trainer(world, model_of("full"), RULES[3])
        batches = (b if b.inputs.size else None for b in streams_for(world))
        trainer.fit(batches, 1)
        try:
            trainer.save(folder / "a", behind=True)
        except (HybridMPIError, MemoryError):
            pass
        else:
            raise AssertionError("nothing was raised")
        assert trainer.saved() is None and world.from_root(lambda: newest(folder / "a")) is None
        meta, words = {"list": [1]}, ["a", "b"]
        trainer.save(folder / "a", meta=meta, words=words, behind=True)
        meta["list"].append(2)
        words.append("c")
        whole = trainer.saved()
        assert world.from_root(lambda: read_manifest(whole)["meta"]["list"]) == [1]
        assert world.from_root(lambda: read_manifest(whole)["words"]) == 2
        trainer.save(folder / "b", behind=True)
        world.from_root(lambda: (folder / "b").rename(folder / "moved"))
        try:
            trainer.close()
        except HybridMPIError as error:
            assert "step-00000001" in str(error)
        else:
            raise AssertionError("nothing was raised")
        world.barrier()
        assert not [thread for thread in threading.enumerate() if "checkpoint" in thread.name and not world.servers]

    for servers, what in itertools.product(server_counts(comm)[:2], ("0", "parameters")):
        refused, failed = what, []
        behind.Behind.copies, checkpoint_write.write_file = refuse, slowly
        try:
            hm.run(main, servers=servers, comm=comm)
        finally:
            behind.Behind.copies, checkpoint_write.write_file = copies, write
        comm.Barrier()
        if comm.Get_rank() == 0:
            shutil.rmtree(folder / "moved")
            shutil.rmtree(folder / "a")


def check_what_a_trainer_saved_is_there_after_a_crash(comm):
    """On a disk that keeps only what was synced; of one process, since the disk sees only its own files."""
    if comm.Get_size() > 1:
        return
    watched = Path(tempfile.mkdtemp())

    def main(world):
        trainer = hm.Trainer(world, Regression(), RULES[3], mode="hybrid")
        batches = (examples_of(step, 6) for step in range(9))
        with Disk(watched) as disk:
            held = None
            for step, behind in ((1, False), (2, True), (3, False)):
                trainer.fit(batches, step)
                disk.allowed = {held, step}
                trainer.save(watched / "runs", keep=1, behind=behind)
                assert trainer.saved() is not None or not behind
                held, disk.allowed = step, {step}
                assert [name for name in os.listdir(watched / "runs") if name != OWNER_FILE] == [
                    f"step-{step:08d}"
                ]  # of keep=1
                disk.note(f"after step {step} was saved")
        for number, (instant, allowed, tree) in enumerate(disk.crashes()):
            after = watched / f"crash-{number}"
            after.mkdir()
            Disk.write(tree, after)
            found = newest(after / "runs")
            step = found and trainer.load(found)["step"]
            assert step in allowed and (step is None or verify(found) == []), (instant, allowed, step)
        assert number > 40

    hm.run(main, servers=0, comm=comm)
    shutil.rmtree(watched)
