"""A checkpoint with one flipped bit, wherever it is, whoever reads it: all ranks go on from the one before, or none."""

import io
import json
import shutil
import tempfile
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
from checks_training import RULES, model_of, streams_for

import hybridmpi as hm
from hybridmpi.checkpoint import verify
from hybridmpi.errors import CheckpointError, HybridMPIError

# Parts of files as a manifest names them: (how the file begins, what is in the name of the part, what a message says).
PLACES = (
    ("server", "/tables/embedding/values", "parameter 'embedding', rows "),
    ("server", "/tables/output/state/accumulator", "parameter 'output', its state 'accumulator', rows "),
    ("dense", "/parameters/lstm.", "parameter 'lstm."),
    ("dense", "/optimizer/", "its state 'accumulator'"),
    ("dense", "/carried/h", "parameter 'carried/h', rows 0 to 11"),
    ("dense", "the HDF5 structure", "the HDF5 structure"),
)


def flip(directory, file, part):
    """Flip a bit in the middle of the last such part of the last such file; return a function that flips it back."""
    manifest = json.loads((directory / "manifest.json").read_text())
    places, begin = [], 0
    for entry in sorted(manifest["files"], key=lambda entry: entry["name"]):
        begin = 0
        for end, _, name, _ in entry["marks"]:
            if entry["name"].startswith(file) and part in name:
                places.append((entry["name"], (begin + end) // 2))
            begin = end
    name, position = places[-1]

    def once():
        data = bytearray((directory / name).read_bytes())
        data[position] ^= 4
        (directory / name).write_bytes(data)

    once()
    return once


def check_all_ranks_go_on_from_the_newest_whole_one(comm):
    folder = Path(comm.bcast(tempfile.mkdtemp() if comm.Get_rank() == 0 else None))
    rule = RULES[2]

    def saved(world, root, mode):
        trainer = hm.Trainer(world, model_of("full"), rule, mode=mode)
        streams = [b if b.inputs.size else None for _, b in zip(range(6), streams_for(world), strict=False)]
        batches = iter(streams)
        for step in (2, 4):
            trainer.fit(batches, step)
            trainer.save(root, keep=3, words=["a", "é"])
        assert verify(root) == [] or not world.on_root()
        return trainer, batches

    def main(world, mode):
        root = folder / f"{mode}-{world.size}-{len(world.servers)}"
        trainer, batches = saved(world, root, mode)
        old, new = root / "step-00000002", root / "step-00000004"
        losses = []
        trainer.fit(batches, 6, lambda result: losses.append(result.loss))
        trainer.close()
        for file, part, said in PLACES if mode == "hybrid" else PLACES[:1]:
            undo = flip(new, file, part) if world.on_root() else None
            world.barrier()
            other = hm.Trainer(world, model_of("full"), rule, seed=2, mode=mode)
            with redirect_stderr(io.StringIO()) as told:
                meta = other.load(root)
            assert meta["step"] == other.step == 2, (mode, part)
            text = told.getvalue()
            assert (text.count("hybridmpi: warning: damaged") == 1 and said in text and str(old) in text) or (
                not world.on_root() and not text
            ), (part, text)
            again = []
            streams = iter([b if b.inputs.size else None for _, b in zip(range(6), streams_for(world), strict=False)])
            for _ in range(2):
                next(streams)
            other.fit(streams, 6, lambda result, again=again: again.append(result.loss))
            assert again[2:] == losses or np.allclose(again[2:], losses, rtol=1e-12), (mode, part, again, losses)
            other.close()
            refused = hm.Trainer(world, model_of("full"), rule, mode=mode)
            try:
                refused.load(new)
                raise AssertionError(f"{part}: a damaged checkpoint was loaded")
            except HybridMPIError as error:
                assert said in str(error) and "are not what was written" in str(error), (part, error)
            if part.startswith("/tables"):  # some of it is loaded: nobody trains or saves that
                for use, arguments in ((refused.fit, (iter([None]), 9)), (refused.save, (root,))):
                    try:
                        use(*arguments)
                        raise AssertionError(f"{part}: went on from half a checkpoint")
                    except HybridMPIError as error:
                        assert "is damaged: load a whole one" in str(error), error
            assert refused.load(old)["step"] == 2
            refused.close()
            world.barrier()
            if world.on_root():
                undo()
            world.barrier()
        assert verify(root) == []

    for servers, mode in ((min(1, comm.Get_size() - 1), "hybrid"), (0, "ps"), (0, "allgather")):
        hm.run(lambda world, m=mode: main(world, m), servers=servers, comm=comm)
    comm.Barrier()
    if comm.Get_rank() == 0:
        shutil.rmtree(folder)


def check_where_none_is_whole_nothing_is_loaded(comm):
    folder = Path(comm.bcast(tempfile.mkdtemp() if comm.Get_rank() == 0 else None))

    def main(world):
        trainer = hm.Trainer(world, model_of("full"), RULES[2])
        for step in (1, 2):
            trainer.fit((b if b.inputs.size else None for b in streams_for(world)), step)
            trainer.save(folder, keep=3)
        if world.on_root():
            flip(folder / "step-00000001", "server", "/tables/embedding/values")
            manifest = folder / "step-00000002" / "manifest.json"
            manifest.write_text(manifest.read_text().replace('"step": 2', '"step": 3', 1))
        world.barrier()
        try:
            trainer.load(folder)
            raise AssertionError("damage was loaded")
        except HybridMPIError as error:
            assert "no checkpoint there is whole" in str(error) or "step-00000001" in str(error), error
            assert not world.on_root() or isinstance(error, CheckpointError)
            assert "step-00000002/manifest.json: damaged" in str(error) and "parameter 'embedding'" in str(error), error
        trainer.close()

    hm.run(main, servers=0, comm=comm)
    comm.Barrier()
    if comm.Get_rank() == 0:
        shutil.rmtree(folder)
