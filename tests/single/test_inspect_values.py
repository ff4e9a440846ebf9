"""What `inspect` says of values, against numpy on the whole arrays: statistics, differences, exported files."""

import json
import warnings

import h5py
import numpy as np
import pytest
from inspected import ROWS, WORDS, model, save

from hybridmpi.cli.main import main
from hybridmpi.errors import CheckpointError, UsageError
from hybridmpi.inspection import difference, moments, statistics
from hybridmpi.inspection.contents import Contents
from hybridmpi.inspection.export import export
from hybridmpi.inspection.moments import Moments


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Slabs and blocks of a few rows, so that there are many."""
    warnings.simplefilter("error")
    monkeypatch.setattr(statistics, "SLAB", 1000)
    monkeypatch.setattr(difference, "SLAB", 1000)
    monkeypatch.setattr(moments, "BLOCK", 100)


def measured(root, name, *patterns):
    found = statistics.measure(Contents(root), list(patterns) or None)
    return next(parameter for parameter in found["parameters"] if parameter["name"] == name)


def agrees(found, values, rel=1e-9):
    finite = values[np.isfinite(values)].astype("f8")
    assert found["count"] == values.size and found["zeros"] == np.count_nonzero(values == 0)
    assert (found["nan"], found["infinite"]) == (np.isnan(values).sum(), np.isinf(values).sum())
    assert (found["min"], found["max"]) == (finite.min(), finite.max())
    scale = np.abs(finite).max() or 1.0  # squares neither overflow nor vanish
    mean, std, norm = (scale * f(finite / scale) for f in (np.mean, np.std, np.linalg.norm))
    for key, expected in [("mean", mean), ("std", std), ("norm", norm)]:
        assert found[key] == pytest.approx(expected, rel=rel, abs=1e-12 if key == "mean" else 0), key


def test_statistics(tmp_path):
    a = model()
    a.embedding[7] = 0
    a.weight[1, 1] = 0
    save(tmp_path, arrays=a, servers=3)
    found = measured(tmp_path, "embedding")
    agrees(found, a.embedding)
    agrees(found["slots"]["accumulator"], a.accumulator)
    agrees(measured(tmp_path, "users"), a.users)
    agrees(measured(tmp_path, "lstm.weight_x", "lstm.*"), a.weight)
    agrees(measured(tmp_path, "lstm.bias"), a.bias)
    norms = np.linalg.norm(a.embedding.astype("f8"), axis=1)
    rows = found["rows"]
    assert rows["count"] == ROWS and rows["zero"] == 1 and rows["norm_min"] == 0
    assert rows["norm_max"] == pytest.approx(norms.max(), rel=1e-6)
    assert rows["norm_median"] == pytest.approx(np.median(norms), rel=1e-6)
    assert rows["untouched"] == ROWS - len(range(0, ROWS, 3))
    assert measured(tmp_path, "users")["rows"]["untouched"] is None
    counts = found["histogram"]
    expected = np.histogram(a.embedding.astype("f8"), 24, (counts["from"], counts["to"]))[0]
    assert counts["counts"] == expected.tolist() and counts["sample"] == a.embedding.size


def test_values_that_are_not_finite(tmp_path, capsys):
    a = model()
    a.embedding[3, 2] = a.embedding[4, 0] = np.nan
    a.embedding[500] = np.inf
    a.accumulator[5, 5] = -np.inf
    a.weight[:] = np.nan
    save(tmp_path, arrays=a)
    agrees(measured(tmp_path, "embedding"), a.embedding)
    assert measured(tmp_path, "embedding")["rows"]["count"] == ROWS
    found = measured(tmp_path, "lstm.weight_x")
    assert found["nan"] == 12 and found["mean"] is None and found["histogram"] is None
    assert main(["inspect", str(tmp_path), "--statistics"]) == 0
    out = capsys.readouterr().out
    assert "NO: 2 NaN, 8 inf" in out and "NO: 12 NaN" in out and "NO: 1 inf" in out
    assert main(["inspect", str(tmp_path), "--statistics", "--json"]) == 0
    json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert main(["inspect", str(tmp_path), "--show", "embedding", "--rows", "3,500", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert shown["values"][0][2] == "nan" and shown["values"][1] == ["inf"] * 8
    assert main(["inspect", str(tmp_path), "--near", "3", "--json"]) == 2
    assert "row 3, 'naïve', is not finite: it points nowhere" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path), "--near", "return", "--top", "2000", "--json"]) == 0
    near = json.loads(capsys.readouterr().out)["tables"][0]["near"]
    assert len(near) == ROWS - 4 and not {3, 4, 500} & {other["row"] for other in near}


@pytest.mark.parametrize(
    "values, rel",
    [
        (np.random.default_rng(0).standard_normal(3000) * 1e-20 + 1e-19, 1e-9),
        (np.random.default_rng(0).standard_normal(3000) * 1e200, 1e-9),
        ((np.random.default_rng(0).standard_normal(3000) + 1e6).astype("f4"), 1e-6),
        (np.full(3000, 0.1, "f4"), 1e-6),
        (np.concatenate([[1e6], np.random.default_rng(1).standard_normal(3000)]).astype("f4"), 1e-6),
        (np.arange(-1000, 2000), 1e-9),
        (np.arange(3000) % 3 == 0, 1e-9),
        (np.random.default_rng(0).standard_normal(3000).astype("f2"), 1e-5),
        ((np.random.default_rng(0).random(3000) * 1e-17).astype("f4"), 1e-6),
    ],
)
@pytest.mark.parametrize("is_large", [False, True])
def test_moments_of_any_scale(values, rel, is_large):
    """What squares to zero or infinity in float32, and small deviations beside large means."""
    found = Moments(moments.EXACT * 2 if is_large else values.size)
    found.add(values)
    summary = found.summary()
    if np.ptp(values.astype("f8")) == 0:
        assert summary.pop("std") == pytest.approx(0, abs=1e-9)
        summary["std"] = float(values.astype("f8").std())
    if float(np.abs(values).max()) > 1e150:  # squares of such deviations are beyond float64
        assert summary.pop("std") is None
        summary["std"] = float((values / 1e200).std() * 1e200)
    agrees(summary, values, rel if is_large else min(rel, 1e-9))


def test_the_sample_takes_all_columns():
    """A stride that has a factor in common with the width would see some columns only."""
    table = np.tile(np.arange(64, dtype="f4"), (40_000, 1))
    found = Moments(table.size, 64)
    found.add(table)
    assert set(found.sample()) == set(range(64)) and found.sample().size <= moments.SAMPLE * 1.2


@pytest.mark.parametrize("servers, kind", [(2, "cyclic"), (3, "cyclic"), (5, "block")])
def test_diff(tmp_path, servers, kind):
    before, after = model(), model()
    rng = np.random.default_rng(5)
    touched = rng.choice(ROWS, 90, replace=False)
    after.embedding[touched] += rng.standard_normal((90, 8), "f4")
    after.embedding[touched[0], 3] += 100
    after.accumulator[touched] += 1
    after.users[3, 1] = np.nan
    save(tmp_path, 1000, before)
    save(tmp_path, 2000, after, servers, {"seed": 8}, kind)
    a, b = (Contents(tmp_path / f"step-0000{n}000") for n in (1, 2))
    found = difference.compare(a, b, None)
    by_name = {parameter["name"]: parameter for parameter in found["parameters"]}
    change = np.abs(after.embedding.astype("f8") - before.embedding)
    embedding = by_name["embedding"]
    assert embedding["max"] == pytest.approx(change.max(), rel=1e-12) and embedding["at"] == [touched[0], 3]
    assert embedding["word"] == WORDS[touched[0]]
    assert embedding["mean"] == pytest.approx(change.mean(), rel=1e-9)
    norm = np.linalg.norm(before.embedding.astype("f8"))
    assert embedding["relative"] == pytest.approx(np.linalg.norm(change) / norm, rel=1e-9)
    assert embedding["rows_changed"] == 90 and embedding["changed"] == np.count_nonzero(change)
    assert embedding["slots"]["accumulator"]["rows_changed"] == 90
    assert embedding["slots"]["accumulator"]["max"] == pytest.approx(1, rel=1e-6)
    assert (by_name["users"]["changed"], by_name["users"]["not_finite"]) == (1, 1)
    assert by_name["lstm.weight_x"]["changed"] == 0 and by_name["lstm.bias"]["at"] is None
    assert found["settings"] == [{"name": "seed", "a": 7, "b": 8}] and found["words"] == "same"
    text = difference.render(found)
    assert f"row {touched[0]}, {WORDS[touched[0]]!r}" in text and "90 (9 %)" in text
    assert "the same, state included: lstm.bias, lstm.weight_x" in text
    same = difference.compare(b, Contents(tmp_path), None)  # NaN in the same place is no change
    assert not any(parameter["changed"] for parameter in same["parameters"])
    assert "no value differs" in difference.render(same)


def test_diff_of_other_models(tmp_path):
    before, after = model(), model()
    after.weight, after.bias = np.zeros((3, 5), "f4"), np.array(-3.0, "f4")
    save(tmp_path, 1, before, words=None)
    save(tmp_path, 2, after)
    a, b = Contents(tmp_path / "step-00000001"), Contents(tmp_path / "step-00000002")
    for array in (b.arrays, b.slots):
        array["new"] = array.pop("users")
    found = difference.compare(a, b, None)
    assert found["reshaped"] == [{"name": "lstm.weight_x", "a": [3, 4], "b": [3, 5]}]
    assert (found["only_in_a"], found["only_in_b"], found["words"]) == (["users"], ["new"], "different")
    text = difference.render(found)
    for line in ["only in A: users", "only in B: new", "3 x 4 in A, 3 x 5 in B", "float64 in A, float32 in B"]:
        assert line in text
    with pytest.raises(UsageError, match="did you mean 'users'"):
        difference.compare(a, b, ["user"])
    assert [one["name"] for one in difference.compare(a, b, ["emb*"])["parameters"]] == ["embedding"]


@pytest.mark.parametrize("name", ["model.npz", "model.h5"])
def test_export(tmp_path, name, monkeypatch):
    monkeypatch.setattr("hybridmpi.inspection.export.SLAB", 1000)
    a = model()
    directory = save(tmp_path / "run", arrays=a, servers=3)
    target = tmp_path / name

    def read():
        if name.endswith(".npz"):
            with np.load(target) as file:
                return {key: file[key] for key in file.files}
        arrays = {}
        with h5py.File(target) as file:
            file.visititems(lambda key, item: arrays.update({key: item[()]}) if hasattr(item, "shape") else None)
            assert not any(file[key].is_virtual for key in arrays) and file.attrs["step"] == 1000
            arrays["vocabulary/words"] = np.array(file["vocabulary/words"].asstr()[:])
        return arrays

    contents = Contents(directory)
    export(contents, target, None, with_state=True, force=False)
    found = read()
    assert np.array_equal(found["vocabulary/words"], WORDS)
    expected = {
        "parameters/embedding": a.embedding,
        "optimizer/embedding/accumulator": a.accumulator,
        "parameters/users": a.users,
        "parameters/lstm.weight_x": a.weight,
        "optimizer/lstm.weight_x/accumulator": np.zeros((3, 4), "f4"),
        "parameters/lstm.bias": a.bias,
        "carried/h": a.hidden,
    }
    assert set(found) == {*expected, "vocabulary/words", "meta"}
    for key, values in expected.items():
        assert found[key].dtype == values.dtype and np.array_equal(found[key], values), key
    assert json.loads(str(found["meta"].astype(str) if name.endswith("z") else found["meta"].decode()))["seed"] == 7
    with pytest.raises(UsageError, match="--force"):
        export(contents, target, None, with_state=False, force=False)
    export(contents, target, ["lstm.*"], with_state=False, force=True)
    assert set(read()) == {"parameters/lstm.weight_x", "parameters/lstm.bias", "vocabulary/words", "meta"}
    for inside in ("dense.h5", "x.npz"):
        with pytest.raises(UsageError, match="within a checkpoint"):
            export(contents, directory / inside, None, with_state=False, force=True)
    (directory / "server-001.h5").unlink()
    before = target.read_bytes()
    with pytest.raises(CheckpointError, match=r"server-001\.h5"):
        export(contents, target, None, with_state=False, force=True)
    assert target.read_bytes() == before and [p.name for p in tmp_path.iterdir() if p.is_file()] == [name]


def test_words_of_several_vocabularies(tmp_path):
    """A job of two vocabularies keeps them one after the other, and says where each table's begin."""
    save(tmp_path, words=[f"s{i}" for i in range(ROWS)] + [f"t{i}" for i in range(70)],
         meta={"words_begin": {"embedding": 0, "users": ROWS}})  # fmt: skip
    contents = Contents(tmp_path)
    assert contents.words_of("users") == [f"t{i}" for i in range(70)]
    assert contents.words_of("embedding")[-1] == "s999" and contents.words_of("lstm.weight_x") is None
