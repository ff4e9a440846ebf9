"""Checkpoints that were damaged, or made to mislead: every reader refuses them by name, or reads what was written."""

import json
import os
import random
import shutil
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
from inspected import save

from hybridmpi import checkpoint
from hybridmpi.checkpoint import Checkpoint, TableShard, files, manifest, verify
from hybridmpi.checkpoint.layout import Progression
from hybridmpi.errors import CheckpointError, DamageError
from hybridmpi.inspection.contents import Contents
from hybridmpi.inspection.damage import check
from hybridmpi.inspection.difference import compare
from hybridmpi.inspection.export import export
from hybridmpi.inspection.near import near
from hybridmpi.inspection.overview import describe, render
from hybridmpi.inspection.rows import show
from hybridmpi.inspection.statistics import measure
from hybridmpi.inspection.steps import survey


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A checkpoint whose larger arrays have several marks, with the outcome of every reader."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "MARK_BYTES", 4000)
        directory = save(tmp_path_factory.mktemp("whole"))
    return directory, {name: read(directory) for name, read in READERS.items()}


def load(directory):
    saved = Checkpoint.open(directory)
    values, state = saved.read_dense()
    found = {"words": saved.words(), "meta": saved.meta}
    arrays = {**values, **saved.carried(), **{f"{s} {n}": a for s, of in state.items() for n, a in of.items()}}
    for name, table in saved.tables.items():
        rows, slots = saved.read_rows(name, 1, 3, (table.rows - 1) // 3) if table.rows > 3 else ({}, {})
        arrays |= {f"table {name}": rows, **{f"{slot} of {name}": array for slot, array in slots.items()}}
    return found | {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}


def exported(directory):
    target = directory.parent / "out.h5"
    export(Contents(directory), target, None, True, True)
    try:
        return target.read_bytes()
    finally:
        target.unlink()


READERS = {
    "load": load,
    "show": lambda d: show(Contents(d), "embedding", "accumulator", "-3:"),
    "statistics": lambda d: json.dumps(measure(Contents(d), ["*"])["parameters"]),
    "near": lambda d: near(Contents(d), "return", None, 5)["tables"],
    "diff": lambda d: json.dumps(compare(Contents(d), Contents(d), None)["parameters"]),
    "export": exported,
    "verify": lambda d: [str(damage) for damage in verify(d)],
    "overview": lambda d: len(render(describe(Contents(d)) | {"path": "", "created": "2026-01-01T00:00:00+00:00"})),
}


@contextmanager
def copied(directory):
    """Yield a copy of a checkpoint in a directory of its own."""
    root = directory.parent / "copies"
    copy = shutil.copytree(directory, root / directory.name, symlinks=True)
    try:
        yield copy
    finally:
        shutil.rmtree(root)


def outcomes(directory, expected):
    """Read by every reader; fail unless it refuses, or finds what was written. Return the names of who refuses."""
    refused = set()
    for name, read in READERS.items():
        try:
            found = read(directory)
        except CheckpointError as error:
            refused.add(name)
            assert str(directory.parent) in str(error), (name, error)
            assert len(str(error)) < 2000, name
        else:
            assert found == expected[name] or (name == "verify" and found), (name, found)
            if name == "verify" and found:
                refused.add(name)
    survey(directory, check_bytes=True)  # says what is wrong in any case
    return refused


def mutations(directory, count):
    """Yield (what is done, a function that does it to a copy) of all files in all ways, the same ones each time."""
    generator = random.Random(5)
    names = sorted(path.name for path in directory.iterdir())
    for number in range(count):
        name, kind = names[number % len(names)], number // len(names) % 8
        size = (directory / name).stat().st_size
        at, length, other = generator.randrange(size), generator.randrange(1, 200), generator.choice(names)

        def change(copy, name=name, kind=kind, size=size, at=at, length=length, other=other):
            path = copy / name
            data = bytearray(path.read_bytes())
            match kind:
                case 0:
                    data[at] ^= 1 << length % 8
                case 1:
                    del data[at:]
                case 2:
                    data += os.urandom(length)
                case 3:
                    data[at : at + length] = bytes(len(data[at : at + length]))
                    data[at] ^= 0x55
                case 4:
                    data[at : at + length] = data[at : at + length][::-1]
                    data[0] ^= 1
                case 5:
                    data = bytearray((copy / other).read_bytes()) + bytes(other == name)
                case 6:
                    path.unlink()
                    return
                case 7:
                    del data[at : at + length]
                    data += bytes(size - len(data)) if length % 2 else b""
                    data += bytes(data == path.read_bytes())
            path.write_bytes(data)

        yield f"{name}: {kind} at {at}, {length}, {other}", name, change


def test_whatever_is_done_to_a_file_no_reader_takes_it(whole):
    directory, expected = whole
    seen = set()
    for what, name, change in mutations(directory, 104):
        with copied(directory) as copy:
            change(copy)
            refused = outcomes(copy, expected)
            assert "verify" in refused, what
            if name == "manifest.json":
                assert refused == set(READERS), (what, refused)
            elif name != "index.h5":  # which only other tools read
                assert {"load", "export"} <= refused, (what, refused)
                seen |= refused
            else:
                assert refused == {"verify"}, (what, refused)
    assert seen == set(READERS)


def rewrite(copy, change):
    """Change the content of the manifest, and give it a valid digest again."""
    content = manifest.read_manifest(copy)
    change(content)
    manifest.write_manifest(copy, content)


def at(path, value):
    """Return a change of a manifest: `path` of keys, and the value there; `...` removes the key."""

    def change(content):
        *before, last = path
        for key in before:
            content = content[key]
        if value is ...:
            del content[last]
        else:
            content[last] = value

    return change


EMBEDDING = ("tables", "embedding")
SHARD = (*EMBEDDING, "shards", 0)
FILE, WEIGHT = ("files", 0), ("parameters", "lstm.weight_x")
DEEP = json.loads("[" * 400 + "]" * 400)
HOSTILE = [
    *[((key,), ...) for key in ("step", "created", "servers", "parameters", "tables")],
    *[((key,), ...) for key in ("carried", "words", "meta", "files")],
    *[((*EMBEDDING, key), ...) for key in ("rows", "dim", "dtype", "kind", "slots", "shards")],
    *[((*SHARD, key), ...) for key in ("file", "path", "first", "stride", "count")],
    *[((*FILE, key), ...) for key in ("name", "size", "sha256", "host", "marks")],
    *[(("step",), value) for value in (-1, "1", None, 1.0, True, 2**70, [], DEEP)],
    *[(("created",), value) for value in ("", "yesterday", 5, "2026-01-01", None)],
    *[(("servers",), value) for value in (0, 1, 3, 10**9, -1)],
    *[((*EMBEDDING, "rows"), value) for value in (-1, 0, 999, 1001, 10**18, 2**62, "1000", None, 1e3)],
    *[((*EMBEDDING, "dim"), value) for value in (-8, 0, 4, 16, 10**18, True)],
    *[((*EMBEDDING, "dtype"), value) for value in ("float64", "float16", "complex64", "object", "S8", "x", 4, "<f4")],
    *[((*EMBEDDING, "kind"), value) for value in ("hash", None, [])],
    *[((*EMBEDDING, "slots"), value) for value in ({"other": "float32"}, {"accumulator": "float64"}, [])],
    ((*EMBEDDING, "slots"), {"a/b": "float32"}),
    *[((*EMBEDDING, "shards"), value) for value in ([], {}, [[]], None)],
    *[((*SHARD, "first"), value) for value in (-1, 1, 2, 10**18)],
    *[((*SHARD, "stride"), value) for value in (0, -2, 1, 3, 10**18)],
    *[((*SHARD, "count"), value) for value in (-1, 0, 499, 501, 10**18)],
    *[
        ((*SHARD, "file"), value)
        for value in ("../server-000.h5", "/dev/zero", "dense.h5", "server-001.h5", "", "server-000.h5\0", "index.h5")
    ],
    *[((*SHARD, "path"), value) for value in ("/", "/tables/users", "/tables/embedding/../users", "/parameters/x", 3)],
    *[((*FILE, "name"), value) for value in ("../x.h5", "/dev/zero", "index.h5", "manifest.json", "", "a\0b", 7)],
    *[((*FILE, "size"), value) for value in (0, -1, 10**18, "5", None)],
    *[((*FILE, "sha256"), value) for value in ("", "x" * 64, 5)],
    *[((*FILE, "marks"), value) for value in ([], [[5]], [[1, "", "", 0]], [[-1, "", "", 0]], {}, [None])],
    *[((*WEIGHT, "shape"), value) for value in ([3], [3, 5], [10**18, 0], [-3, -4], "34", [3, 4.0])],
    *[((*WEIGHT, "slots"), value) for value in (["other"], ["accumulator"] * 2, [".."], "a")],
    (("parameters", "a/b"), {"shape": [0], "dtype": "float32", "slots": []}),
    (("parameters", "users"), {"shape": [0], "dtype": "float32", "slots": []}),
    (("parameters", "axes"), {"shape": [0] * 40, "dtype": "float32", "slots": []}),
    (("tables", "new"), {"rows": 10**15, "dim": 0, "dtype": "float32", "kind": "block", "slots": {}, "shards": []}),
    (("carried", "h", "shape"), [10**18, 8]),
    (("carried", "h", "dtype"), "int16"),
    *[(("words",), value) for value in (999, 1001, 10**18, -1, "many", 1.5)],
    (("meta",), []),
]  # fmt: skip


def test_a_manifest_that_lies_is_refused_by_name(whole):
    """Its digest is right: what it says is not."""
    directory, expected = whole
    for path, value in HOSTILE:
        with copied(directory) as copy:
            rewrite(copy, at(path, value))
            with pytest.raises(CheckpointError, match=r"(manifest\.json|\.h5): "):
                load(copy)
            if path != ("words",):  # how many there are shows where they are read
                refused = outcomes(copy, expected)
                assert refused == set(READERS), (path, value, set(READERS) - refused)


def test_a_manifest_that_is_no_json_of_ours_is_refused(whole):
    directory, expected = whole
    text = (directory / "manifest.json").read_text()
    for content in (
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff" * 100,
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b"1" * 10_000,
        text.replace('"step": 1000', '"step": NaN').encode(),
        text.replace('"step": 1000', '"step": 1000, "step": 1000').encode(),
        text.replace('"step": 1000', f'"step": {"9" * 5000}').encode(),
        text.replace(" ", "  ").encode(),
        text.encode("utf-16"),
        text[: len(text) // 2].encode(),
        (text + " ").encode(),
    ):
        with copied(directory) as copy:
            (copy / "manifest.json").write_bytes(content)
            assert outcomes(copy, expected) == set(READERS), content[:40]


def test_a_format_of_the_future_is_named(whole):
    with copied(whole[0]) as copy:
        rewrite(copy, at(("format",), 4))
        with pytest.raises(CheckpointError, match=r"format 4: expected one of 2, 3; read it with the hybridmpi that"):
            Checkpoint.open(copy)


@pytest.mark.parametrize("name", ["server-001.h5", "dense.h5", "manifest.json"])
@pytest.mark.parametrize("kind", ["link", "hard to find", "pipe", "directory", "device"])
def test_only_regular_files_of_the_directory_are_opened(whole, name, kind):
    """A link may lead anywhere, a pipe may never answer."""
    directory, expected = whole
    with copied(directory) as copy:
        path = copy / name
        match kind:
            case "link":
                path.rename(copy.parent / name)
                path.symlink_to(copy.parent / name)
            case "hard to find":
                path.rename(copy / "other")
                path.symlink_to("other")
            case "pipe":
                path.unlink()
                os.mkfifo(path)
            case "directory":
                path.unlink()
                path.mkdir()
            case "device":
                path.unlink()
                path.symlink_to("/dev/zero")
        refused = outcomes(copy, expected)
        assert refused >= ({"load", "verify", "export"} if name != "manifest.json" else set(READERS)), refused


def hashed(path):
    """Return the manifest's entry of a file as it is: its digests are right, whatever it holds."""
    digest = files.MarkedDigest()
    digest.update(path.read_bytes(), files.HEADERS)
    return manifest.to_entry(
        files.FileRecord(path.name, path.stat().st_size, digest.hexdigest(), "host", tuple(digest.marks))
    )


def forge(copy, name, change):
    """Let `change(file)` change an HDF5 file of a checkpoint, and give file and manifest right digests again."""
    with h5py.File(copy / name, "r+") as file:
        change(file)
    content = manifest.read_manifest(copy)
    content["files"] = [hashed(copy / name) if entry["name"] == name else entry for entry in content["files"]]
    manifest.write_manifest(copy, content)


def outside(tmp_path):
    """Return a file that no checkpoint may read."""
    path = tmp_path / "secret.h5"
    with h5py.File(path, "w") as file:
        file["values"] = np.full((500, 8), 7, "f4")
        file.create_dataset("words", data=["secret"] * 1000, dtype=h5py.string_dtype())
    return path


def replace_values(file, make):
    del file["/tables/embedding/values"]
    make(file, "/tables/embedding/values")


def virtual(file, key, secret):
    layout = h5py.VirtualLayout((500, 8), "f4")
    layout[:] = h5py.VirtualSource(secret, "values", (500, 8))
    file.create_virtual_dataset(key, layout)


VALUES = {
    "external link": lambda f, key, secret: f.__setitem__(key, h5py.ExternalLink(secret, "values")),
    "soft link": lambda f, key, secret: f.__setitem__(key, h5py.SoftLink("/tables/users/values")),
    "external storage": lambda f, key, secret: f.create_dataset(
        key, (500, 8), "f4", external=[(str(secret), 0, 16000)]
    ),
    "virtual dataset": virtual,
    "compressed": lambda f, key, secret: f.create_dataset(key, data=np.ones((500, 8), "f4"), compression="gzip"),
    "fill values": lambda f, key, secret: f.create_dataset(key, (10**9, 8), "f4", chunks=(1000, 8), fillvalue=1),
    "doubles": lambda f, key, secret: f.create_dataset(key, data=np.ones((500, 8), "f8")),
    "other order": lambda f, key, secret: f.create_dataset(key, data=np.ones((500, 8), ">f4")),
    "no values": lambda f, key, secret: None,
}


@pytest.mark.parametrize("kind", VALUES)
def test_hdf5_leads_nowhere(whole, tmp_path, kind):
    """Whatever an HDF5 file says of a table, with right digests: the manifest must say where its values lie."""
    with copied(whole[0]) as copy:
        secret = outside(tmp_path)
        forge(copy, "server-000.h5", lambda f: replace_values(f, lambda f, key: VALUES[kind](f, key, secret)))
        for read in (load, exported, READERS["statistics"], verify):
            with pytest.raises(DamageError, match=r"manifest\.json: says what cannot be: server-000\.h5 holds no /tab"):
                read(copy)


PATH, TEXT = "vocabulary/words", h5py.string_dtype()


def other_group(file, secret):
    del file["vocabulary"]
    file["vocabulary"] = h5py.ExternalLink(secret, "/")


WORDS = {
    "external link": lambda f, secret: f.__setitem__(PATH, h5py.ExternalLink(secret, "words")),
    "group outside": other_group,
    "soft link": lambda f, secret: f.__setitem__(PATH, h5py.SoftLink("/meta/job")),
    "numbers": lambda f, secret: f.__setitem__(PATH, np.zeros(1000)),
    "fewer": lambda f, secret: f.create_dataset(PATH, data=["x"] * 10, dtype=TEXT),
    "unwritten": lambda f, secret: f.create_dataset(PATH, (1000,), TEXT),
    "in chunks": lambda f, secret: f.create_dataset(PATH, (1000,), TEXT, chunks=(10,)),
    "group": lambda f, secret: f.create_group(PATH),
    "no UTF-8": lambda f, secret: f.create_dataset(PATH, data=[b"\xff"] * 1000, dtype=TEXT),
}


@pytest.mark.parametrize("kind", WORDS)
def test_words_lie_in_the_file_itself(whole, tmp_path, kind):
    def change(file):
        del file["/vocabulary/words"]
        WORDS[kind](file, outside(tmp_path))

    with copied(whole[0]) as copy:
        dense = manifest.read_manifest(copy)["files"][0]
        with h5py.File(copy / "dense.h5", "r+") as file:
            change(file)
        # The arrays lie where they lay: new marks of the same parts, and one of what HDF5 appended.
        digest, data, begin = files.MarkedDigest(), (copy / "dense.h5").read_bytes(), 0
        for end, _, part, _ in dense["marks"]:
            digest.update(data[begin:end], part)
            begin = end
        if begin < len(data):
            digest.update(data[begin:], files.HEADERS)
        record = files.FileRecord("dense.h5", len(data), digest.hexdigest(), "host", tuple(digest.marks))
        rewrite(copy, at(FILE, manifest.to_entry(record)))
        assert verify(copy) == []
        saved = Checkpoint.open(copy)
        saved.read_dense()
        with pytest.raises(DamageError, match=r"dense\.h5: the vocabulary cannot be read"):
            saved.words()


def test_a_word_longer_than_its_file_is_not_made(whole):
    """A string in HDF5 says its length itself; a thousand may say that they are the same long one."""
    with copied(whole[0]) as copy:
        path = copy / "dense.h5"
        with h5py.File(path) as file:
            offset = file["vocabulary/words"].id.get_offset()
        data = bytearray(path.read_bytes())
        for word in range(1000):
            data[offset + 16 * word : offset + 16 * word + 4] = (2**31).to_bytes(4, "little")
        path.write_bytes(data)
        content = manifest.read_manifest(copy)
        digest, begin = files.MarkedDigest(), 0
        for end, _, part, _ in content["files"][0]["marks"]:
            digest.update(data[begin:end], part)
            begin = end
        record = files.FileRecord("dense.h5", len(data), digest.hexdigest(), "host", tuple(digest.marks))
        rewrite(copy, at(FILE, manifest.to_entry(record)))
        with pytest.raises(DamageError, match="says that its words are longer than the file"):
            Checkpoint.open(copy).words()


def test_other_dtypes_and_slots_than_the_run_wants_are_refused(tmp_path):
    directory = save(tmp_path)
    saved = Checkpoint.open(directory)
    shapes = {"lstm.weight_x": (3, 4), "lstm.bias": ()}, {"embedding": (1000, 8), "users": (70, 3)}
    right = {"lstm.weight_x": "f4", "lstm.bias": "f8", "embedding": "f4", "users": "f8"}
    dtypes = {name: np.dtype(dtype) for name, dtype in right.items()}
    saved.check(*shapes, dtypes=dtypes)
    for name in dtypes:
        for other in ("i4", "f2", "c8", "f8" if right[name] == "f4" else "f4"):
            with pytest.raises(CheckpointError, match=f"'{name}': expected dtype"):
                saved.check(*shapes, dtypes=dtypes | {name: np.dtype(other)})
    rows = Progression(0, 1, 5)
    for values, state in (
        (np.empty((5, 8), "f8"), {"accumulator": np.empty((5, 8), "f4")}),
        (np.empty((5, 4), "f4"), {"accumulator": np.empty((5, 4), "f4")}),
        (np.empty((4, 8), "f4"), {"accumulator": np.empty((4, 8), "f4")}),
        (np.empty((5, 8), ">f4"), {"accumulator": np.empty((5, 8), "f4")}),
        (np.empty((5, 8), "f4"), {}),
        (np.empty((5, 8), "f4"), {"accumulator": np.empty(5, "f4")}),
        (np.empty((5, 8), "f4"), {"accumulator": np.empty((5, 8), "f4"), "more": np.empty((5, 8), "f4")}),
    ):
        with pytest.raises(CheckpointError, match="table 'embedding': holds values float32"):
            saved.read_into("embedding", [(rows, values, state)])


def test_a_slot_of_another_shape_is_not_stored(tmp_path):
    directory = checkpoint.begin(tmp_path, 1)
    for slot in (np.zeros(()), np.zeros(3), np.zeros((2, 2), "f4")):
        with pytest.raises(
            CheckpointError, match="optimiser slot 'm' of parameter 'w'.*expected what the parameter is"
        ):
            checkpoint.write_dense(directory, {"w": np.zeros((2, 2))}, {"m": {"w": slot}}, {}, {})


def test_arrays_of_the_other_byte_order_come_back_as_numbers(tmp_path):
    values = np.arange(12, dtype=">f4").reshape(4, 3)
    directory = checkpoint.begin(tmp_path, 1)
    records = [
        checkpoint.write_server(directory, 0, 1, [TableShard("e", 4, 3, "block", 0, 1, values, {"m": -values})]),
        checkpoint.write_dense(directory, {"w": values}, {}, {}, {}),
    ]
    checkpoint.commit(directory, 1, records, {})
    saved = Checkpoint.open(directory)
    rows, state = saved.read_rows("e", 0, 1, 4)
    assert rows.tolist() == values.tolist() and state["m"].tolist() == (-values).tolist()
    assert saved.read_dense()[0]["w"].tolist() == values.tolist()


def test_generations_that_are_found_below_a_directory(whole):
    """What is no whole generation is left out, whatever it is."""
    with copied(whole[0]) as copy:
        root = copy.parent
        for number, change in enumerate((
            lambda path: (path / "manifest.json").write_bytes(b"["),
            lambda path: rewrite(path, at(("created",), "9999-01-01T00:00:00+00:00")),  # of another step than its name
            lambda path: (path / "manifest.json").unlink(),
            lambda path: os.mkfifo(path / "x"),
        )):  # fmt: skip
            other = shutil.copytree(copy, root / f"step-{2000 + number:08d}")
            change(other)
        (root / "step-00003000").write_text("a file")
        (root / "step-00004000").symlink_to("nowhere")
        assert Checkpoint.open(root).directory == copy and check(root)["step"] == 1000
        assert Path(survey(root)["path"]) == root
