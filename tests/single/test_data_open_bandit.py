"""The Open Bandit reader on small made-up files: columns, vocabularies, order, epochs, every refusal."""

import sys

import numpy as np
import pytest

from hybridmpi.data import open_bandit, training_batches
from hybridmpi.errors import DataError

ITEMS = ",item_id,item_feature_0,item_feature_1,item_feature_2,item_feature_3\n0,0,-0.5,a,x,p\n1,1,0.25,b,x,q\n"
HEAD = (
    ",timestamp,item_id,position,click,propensity_score,user_feature_0,user_feature_1,user_feature_2,user_feature_3,"
    "user-item_affinity_0,user-item_affinity_1\n"
)
LOG = HEAD + (
    "0,2019-11-24 00:00:34.76+00:00,1,3,0,0.5,u,v,w,z,0.0,2.0\n"
    "1,2019-11-24 17:00:53.96+00:00,0,1,1,0.5,u,v,w2,z,1.0,3.0\n"
    "2,2019-11-24 05:00:00.00+00:00,1,1,0,0.5,u2,v,w,z,0.0,0.0\n"
)
OTHER = HEAD + "0,2019-11-23 23:59:00.00+00:00,0,1,0,0.5,u,v,w,z,0.0,0.0\n"


@pytest.fixture
def folder(tmp_path):
    for place, log in (("random/all", LOG), ("bts/men", OTHER)):
        path = tmp_path / place
        path.mkdir(parents=True)
        (path / "item_context.csv").write_text(ITEMS)
        (path / f"{path.name}.csv").write_text(log)
    return tmp_path


def test_what_is_read(folder):
    read = open_bandit.read(folder, held_out=1, seed=1)
    assert read.tables == {
        "policy": 2,
        "campaign": 2,
        "item": 3,
        "position": 2,
        "user_feature_0": 2,
        "user_feature_1": 1,
        "user_feature_2": 2,
        "user_feature_3": 1,
        "item_feature_1": 2,
        "item_feature_2": 1,
        "item_feature_3": 2,
        "hour": 4,
        "affinity": 2,
    }
    assert str(read) == "Open Bandit: 4 impressions, 1 clicked, the last 1 held out; 13 tables, 26 rows"
    # In the order of time over the files: men, then all at 0, 5 and 17 o'clock. The most frequent value is row 0.
    np.testing.assert_array_equal(read.labels, [0, 0, 0, 1])
    ids = dict(zip(read.tables, read.ids, strict=True))
    np.testing.assert_array_equal(ids["policy"], [1, 0, 0, 0])
    np.testing.assert_array_equal(ids["item"], [2, 0, 0, 1])
    np.testing.assert_array_equal(ids["user_feature_2"], [0, 0, 0, 1])
    np.testing.assert_array_equal(ids["hour"], [2, 0, 3, 1])  # numbered as texts: "0", "17", "23", "5"
    # Items clicked before, as often as that: "all 1" five times, "all 0" once.
    np.testing.assert_array_equal(ids["affinity"], [0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(read.starts[-1], [0, 0, 2, 2, 6])
    log = np.log1p
    expected = [[-0.5, 0, 0], [0.25, log(2), log(2)], [0.25, 0, 0], [-0.5, log(1), log(4)]]
    np.testing.assert_allclose(read.numbers, expected, rtol=1e-6)


def test_held_out_are_the_last_and_bags_are_taken(folder):
    read = open_bandit.read(folder, held_out=2, seed=1)
    batch = read.held_out_part(0, 2)
    np.testing.assert_array_equal(batch.labels, [0, 1])
    np.testing.assert_array_equal(batch.starts[-1], [0, 0, 4])
    np.testing.assert_array_equal(batch.ids[-1], [1, 0, 0, 0])
    assert batch.logits is None and batch.weight == 2
    assert read.held_out_part(1, 0).weight == 0


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_epoch_reads_everything_once_in_a_new_order(folder, ranks):
    """Batches of 2 from 3 impressions cross the ends of epochs."""
    read = open_bandit.read(folder, held_out=1, seed=5)
    streams = [training_batches(read, 2, 0, rank, ranks) for rank in range(ranks)]
    hours = []
    for _ in range(12):
        hours += [part.ids[11] for stream in streams if (part := next(stream)) is not None]
    epochs = np.concatenate(hours).reshape(8, 3)
    assert all(set(epoch) == {0, 2, 3} for epoch in epochs) and len({tuple(epoch) for epoch in epochs}) > 2
    again = open_bandit.read(folder, held_out=1, seed=5).training(0, 24)
    np.testing.assert_array_equal(again.ids[11], np.concatenate(hours))
    np.testing.assert_array_equal(read.training(4, 3).ids[11], np.concatenate(hours)[4:7])  # back, to resume


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("random/all/all.csv", "position", "place", "has no column position"),
        ("random/all/all.csv", ",w2,", ",", r"all\.csv, line 3: 11 values, expected 12"),
        (
            "random/all/all.csv",
            "96+00:00,0,1,1",
            "96+00:00,0,1,2",
            r"all\.csv, line 3: '2': expected .* a click of 0 or 1",
        ),
        ("random/all/all.csv", "76+00:00,1", "76+00:00,7", r"all\.csv, line 2: '7': expected an item of item_context"),
        ("random/all/all.csv", "3.0", "many", r"line 3: could not convert string to float"),
        ("random/all/all.csv", "2019-11-24 17", "noon", "line 3: .*a time such as"),
        ("bts/men/item_context.csv", "item_feature_3", "item", r"item_context\.csv' has no column item_feature_3"),
        ("bts/men/item_context.csv", "-0.5", "cheap", r"item_context\.csv, line 2: item_feature_0 is 'cheap'"),
    ],
)
def test_refusals_name_file_and_line(folder, file, old, new, message):
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    with pytest.raises(DataError, match=message):
        open_bandit.read(folder, 1, 1)


def test_absent_files(folder, tmp_path):
    with pytest.raises(DataError, match="4 impressions, of which data.held_out = 4"):
        open_bandit.read(folder, 4, 1)
    (folder / "bts" / "men" / "men.csv").unlink()
    with pytest.raises(DataError, match=r"men\.csv' cannot be read: .*No such file"):
        open_bandit.read(folder, 1, 1)
    with pytest.raises(DataError, match="no item_context.csv in any POLICY/CAMPAIGN folder"):
        open_bandit.read(tmp_path / "nowhere", 1, 1)


def test_the_installed_package_is_found_and_not_imported(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    with pytest.raises(DataError, match="pip install --no-deps obp"):
        open_bandit.installed()
    package = tmp_path / "site" / "obp"
    (package / "dataset" / "obd").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    sys.path_importer_cache.clear()
    assert open_bandit.installed() == package / "dataset" / "obd"


@pytest.mark.parametrize("count", ["inf", "-inf", "nan", "-1", "-1e-300", "1e7", "x", "", "1e400", "None"])
def test_counts_that_are_none(folder, count):
    log = folder / "bts" / "men" / "men.csv"
    log.write_text(OTHER.replace(",0.0,0.0\n", f",0.0,{count}\n"))
    with pytest.raises(DataError, match=r"men\.csv, line 2: .*counts of clicks from 0 to 1,000,000"):
        open_bandit.read(folder, 1, 1)


@pytest.mark.parametrize("value", ["inf", "nan", "-inf", "1e39", "x", ""])
def test_numbers_of_items_are_blamed_on_the_file_of_items(folder, value):
    """A float32 has no 1e39."""
    items = folder / "random" / "all" / "item_context.csv"
    items.write_text(ITEMS.replace("0.25", value))
    with pytest.raises(DataError, match=rf"item_context\.csv, line 3: item_feature_0 is '{value}'.*a finite number"):
        open_bandit.read(folder, 1, 1)


def test_an_item_twice(folder):
    items = folder / "random" / "all" / "item_context.csv"
    items.write_text(ITEMS + "2,1,0.5,b,x,q\n")
    with pytest.raises(DataError, match=r"item_context\.csv, line 4: item '1' a second time"):
        open_bandit.read(folder, 1, 1)
