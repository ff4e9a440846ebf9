"""What `save` promised is there after a crash at any instant, on a disk that keeps only what was synced (disk.py)."""

from threading import Event

import numpy as np
import pytest
from disk import Disk

from hybridmpi import checkpoint
from hybridmpi.checkpoint import Behind, Checkpoint, TableShard, generations
from hybridmpi.data import cache
from hybridmpi.errors import CheckpointError
from hybridmpi.folders import read_json, write_json

ROWS, DIM = 6, 2


def shards_of(value, server, servers):
    values = np.full((ROWS, DIM), value, "f4")
    return [TableShard("e", ROWS, DIM, "cyclic", server, servers, values[server::servers], {})]


def save(root, step, value, servers=1, behind=False):
    """Write a generation that holds `value` everywhere, as a job does: several writers, then a commit, then pruning."""
    directory = checkpoint.begin(root, step)
    writers = [Behind() if behind else checkpoint for _ in range(servers)]
    records = [w.write_server(directory, s, servers, shards_of(value, s, servers)) for s, w in enumerate(writers)]
    dense = checkpoint.write_dense(directory, {"w": np.full(3, value)}, {}, {}, {"value": value})
    if behind:
        records = checkpoint.collect(directory, servers, Event())
        for writer in writers:
            writer.result()
            writer.close()
    checkpoint.commit(directory, step, [*records, dense], {})
    checkpoint.prune(root, 1)


def value_in(root):
    """Return what the newest generation below `root` holds, None if there is none; all that count must be whole."""
    if not generations.newest(root):
        with pytest.raises(CheckpointError):
            Checkpoint.open(root)
        return None
    for directory in generations.generations(root):
        if (directory / "manifest.json").exists() and generations._is_whole(directory):
            assert checkpoint.verify(directory) == []
    opened = Checkpoint.open(root)
    (value,) = {
        opened.meta["value"],
        *opened.read_rows("e", 0, 1, ROWS)[0].ravel().tolist(),
        *opened.read_dense()[0]["w"].tolist(),
    }
    return int(value)


def check_crashes(disk, root, tmp_path):
    """Look at all that crashes may have left: an allowed value is found; in every fifth, the next save succeeds."""
    count = 0
    for instant, allowed, tree in disk.crashes():
        count += 1
        after = tmp_path / f"crash-{count}"
        after.mkdir()
        Disk.write(tree, after)
        try:
            assert value_in(after / root) in allowed
            if count % 5 == 0:
                save(after / root, 9, 99)
                assert value_in(after / root) == 99
                assert [path.name for path in (after / root).iterdir()] == ["step-00000009"]
        except Exception as error:
            raise AssertionError(f"a crash {instant}: allowed {allowed}, left {sorted(tree)}: {error}") from error
    return count


# Of each: the generations there are before, each pruned to by the next; and what is saved under the eyes of the disk.
CASES = {
    "the first, in folders that are made for it": ([], [dict(step=1, value=1)]),
    "the next one": ([dict(step=1, value=1)], [dict(step=2, value=2, servers=2)]),
    "the same step again, and again": ([dict(step=5, value=1)], [dict(step=5, value=value) for value in (2, 3)]),
    "a shorter run in the folder of a longer one": ([dict(step=8, value=1)], [dict(step=2, value=2)]),
    "written behind": ([dict(step=1, value=1)], [dict(step=2, value=2, behind=True)]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_save_promised_is_there_after_a_crash(tmp_path, case):
    before, saves = CASES[case]
    watched, root = tmp_path / "disk", "runs/a"
    watched.mkdir()
    held = None
    for one in before:
        save(watched / root, **one)
        held = one["value"]
    with Disk(watched) as disk:
        for one in saves:
            disk.allowed = {held, one["value"]}
            save(watched / root, **one)
            held = one["value"]
            disk.allowed = {held}
            disk.note(f"after saving {held}")
    assert check_crashes(disk, root, tmp_path) > 20


def test_a_save_that_failed_takes_nothing_away(tmp_path):
    """A writer of the next generation fails; then the same step is saved after all."""
    watched = tmp_path / "disk"
    watched.mkdir()
    save(watched / "runs", 1, 1)
    with Disk(watched) as disk:
        disk.allowed = {1}
        directory = checkpoint.begin(watched / "runs", 2)
        checkpoint.write_server(directory, 0, 2, shards_of(2, 0, 2))
        with pytest.raises(CheckpointError):
            checkpoint.write_dense(directory, {"w/x": np.ones(3)}, {}, {}, {})
        disk.note("after the failure")
        disk.allowed = {1, 3}
        save(watched / "runs", 2, 3)
        disk.allowed = {3}
    assert check_crashes(disk, "runs", tmp_path) > 20


def test_what_is_kept_and_can_be_made_again_is_whole_or_absent_after_a_crash(tmp_path):
    """Nothing waits for it to be on disk: what a crash leaves of it is found out when it is read."""
    arrays, value = {"ids": np.arange(100)}, {"rate": [1.5, 2.5]}
    watched = tmp_path / "disk"
    watched.mkdir()
    with Disk(watched) as disk:
        cache.write(watched / "folder" / "a.npz", arrays, {"words": "some"})
        write_json(watched / "folder" / "b.json", value)
    found = set()
    for number, (instant, _, tree) in enumerate(disk.crashes()):
        after = tmp_path / f"crash-{number}"
        after.mkdir()
        Disk.write(tree, after)
        kept, json = cache.read(after / "folder" / "a.npz"), read_json(after / "folder" / "b.json")
        assert kept is None or (kept[0]["ids"].tolist() == list(range(100)) and kept[1] == {"words": "some"}), instant
        assert json in (None, value), instant
        found.add((kept is None, json is None))
    assert len(found) == 4


def test_the_disk_forgets_what_was_not_synced(tmp_path):
    """Names and bytes apart: a file that was renamed into place unsynced may be empty there, or have its old name."""
    (tmp_path / "old").write_bytes(b"before")
    with Disk(tmp_path) as disk:
        (tmp_path / "aside").write_bytes(b"new")
        (tmp_path / "aside").replace(tmp_path / "old")
    left = {tuple(sorted(tree.items())) for _, _, tree in disk.crashes()}
    assert (("old", b"new"),) in left and (("old", b"before"),) in left and (("old", b""),) in left
    assert (("aside", b""), ("old", b"before")) in left
