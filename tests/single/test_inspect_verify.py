"""`hybridmpi inspect --verify`: whatever is done to any byte of any file of a checkpoint, it is found and named."""

import json
import re
import shutil

import h5py
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inspected import save

from hybridmpi.checkpoint import files
from hybridmpi.cli.main import main
from hybridmpi.errors import CheckpointError
from hybridmpi.inspection.damage import check, render


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A checkpoint whose larger arrays have several marks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "MARK_BYTES", 4000)
        return save(tmp_path_factory.mktemp("whole"))


def flip(path, offset, bit=0):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def test_one_flipped_bit_anywhere_is_found(whole):
    """In any file: values, state, what HDF5 keeps for itself, the index, the manifest."""
    sizes = {path.name: path.stat().st_size for path in sorted(whole.iterdir())}
    assert set(sizes) == {"dense.h5", "index.h5", "manifest.json", "server-000.h5", "server-001.h5"}
    places = st.sampled_from(sorted(sizes)).flatmap(
        lambda name: st.tuples(st.just(name), st.integers(0, sizes[name] - 1), st.integers(0, 7))
    )

    @settings(max_examples=250, deadline=None, database=None)
    @given(places)
    def try_it(place):
        name, offset, bit = place
        flip(whole / name, offset, bit)
        try:
            if name == "manifest.json":
                with pytest.raises(CheckpointError, match=r"manifest\.json"):
                    check(whole)
            else:
                (damage,) = check(whole)["damage"]
                assert damage["file"] == name and damage["begin"] <= offset < damage["end"]
        finally:
            flip(whole / name, offset, bit)

    try_it()
    assert not check(whole)["damage"]


@pytest.mark.parametrize(
    "file, dataset, offset, expected",
    [
        ("server-001.h5", "/tables/embedding/values", 9000, ("embedding", None, 501, 2)),
        ("server-000.h5", "/tables/embedding/state/accumulator", 5, ("embedding", "accumulator", 0, 2)),
        ("dense.h5", "/parameters/lstm.weight_x", 13, ("lstm.weight_x", None, 0, 1)),
        ("dense.h5", "/optimizer/lstm.weight_x/accumulator", 13, ("lstm.weight_x", "accumulator", 0, 1)),
        ("dense.h5", "/carried/h", 100, ("carried/h", None, None, None)),
    ],
)
def test_the_parameter_and_its_rows_are_named(whole, tmp_path, capsys, file, dataset, offset, expected):
    copy = shutil.copytree(whole, tmp_path / whole.name)
    with h5py.File(copy / file) as opened:
        at = opened[dataset].id.get_offset() + offset
    flip(copy / file, at)
    assert main(["inspect", str(copy), "--verify", "--json"]) == 1
    (damage,) = json.loads(capsys.readouterr().out)["damage"]
    name, slot, first, stride = expected
    assert (damage["file"], damage["parameter"], damage["slot"]) == (file, name, slot)
    assert damage["begin"] <= at < damage["end"]
    rows = damage["rows"]
    assert (rows and [rows["first"], rows["stride"]]) == (None if first is None else [first, stride])
    assert main(["inspect", str(copy), "--verify"]) == 1
    text = capsys.readouterr().out
    assert re.search(rf"^  {re.escape(file)} .* DAMAGED$", text, re.MULTILINE) and text.count("ok") == 3
    assert f"DAMAGED {file}: bytes " in text and f"which is in parameter '{name}'" in text
    assert "verified" not in text and "there is no other generation" in text
    if file == "server-001.h5":  # of two servers, the second one holds every other row from 1 on; a mark has 125 rows
        assert "rows 501 to 749, every 2nd" in text and rows["count"] == 125


def test_files_that_are_missing_cut_or_longer(whole, tmp_path):
    for number, (change, expected) in enumerate([
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "cut short"),
        (lambda path: path.write_bytes(b""), "found 0: cut short"),
        (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "it grew"),
    ]):  # fmt: skip
        copy = shutil.copytree(whole, tmp_path / str(number) / whole.name)
        for name in ("dense.h5", "index.h5", "server-001.h5"):
            change(copy / name)
        damage = check(copy)["damage"]
        assert [found["file"] for found in damage] == ["dense.h5", "index.h5", "server-001.h5"]
        assert all(expected in found["text"] for found in damage), damage


def test_what_to_go_on_from(tmp_path, capsys):
    first, second = save(tmp_path, 1), save(tmp_path, 2)
    flip(second / "server-000.h5", 3000)
    text = render(check(tmp_path))
    assert text.splitlines()[0] == f"{second}, step 2" and f"hybridmpi inspect --verify {first}" in text
    flip(second / "server-000.h5", 3000)
    flip(second / "index.h5", 100)
    assert "resumes this checkpoint without it" in render(check(tmp_path))
    # A damaged manifest makes an older generation the newest whole one: nobody should have to guess that.
    flip(second / "manifest.json", 100)
    assert main(["inspect", str(tmp_path), "--verify"]) == 1
    text = capsys.readouterr().out
    assert text.startswith(f"{first}, step 1\n") and "DAMAGED step-00000002/manifest.json: not what was written" in text
    assert main(["inspect", str(first), "--verify"]) == 0
    assert "verified: every byte" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path), "--steps", "--verify"]) == 1
    assert "damaged (manifest.json: damaged: its text" in capsys.readouterr().out
