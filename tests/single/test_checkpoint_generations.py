"""A generation is whole or absent: commits, kills at every instant, restarts of a step, pruning, damage."""

import errno
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from hybridmpi import checkpoint
from hybridmpi.checkpoint import Checkpoint, TableShard, generations
from hybridmpi.checkpoint.verify import verify_file
from hybridmpi.errors import CheckpointError, UsageError
from hybridmpi.inspection.contents import Contents
from hybridmpi.inspection.export import export

ROWS, DIM = 40, 5


def values_of(step: int) -> np.ndarray:
    return np.full((ROWS, DIM), step, "f4")


def write_parts(root: Path, step: int, servers: int = 2) -> tuple[Path, list]:
    directory = checkpoint.begin(root, step)
    values = values_of(step)
    records = [
        checkpoint.write_server(
            directory, s, servers, [TableShard("e", ROWS, DIM, "cyclic", s, servers, values[s::servers], {})]
        )
        for s in range(servers)
    ]
    records.append(checkpoint.write_dense(directory, {"w": values[:2]}, {}, {}, {"step": step}))
    return directory, records


def save(root: Path, step: int, servers: int = 2) -> Path:
    directory, records = write_parts(root, step, servers)
    return checkpoint.commit(directory, step, records, {})


def load(root: Path) -> int:
    """Check every generation that counts, read all of the newest one, and return its step."""
    for directory in generations.generations(root):
        if generations.newest(root) == directory or (directory / "manifest.json").exists():
            assert checkpoint.verify(directory) == []
    opened = Checkpoint.open(root)
    np.testing.assert_array_equal(opened.read_rows("e", 0, 1, ROWS)[0], values_of(opened.step))
    np.testing.assert_array_equal(opened.read_dense()[0]["w"], values_of(opened.step)[:2])
    return opened.step


def in_child(action) -> int:
    """Run `action` in a forked child; return its exit status."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(instant: int, action):
    """Return an action that is ended by SIGKILL at its `instant`-th system call that changes the file system."""

    def run():
        seen = 0
        list_directory = os.listdir
        os.listdir = lambda path: sorted(list_directory(path))  # the manifest last, unless it is dealt with first
        for name in ("fsync", "replace", "rename", "mkdir", "rmdir", "unlink", "pwrite"):
            real = getattr(os, name)

            def counted(*arguments, real=real, **keywords):
                nonlocal seen
                seen += 1
                if seen == instant:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **keywords)

            setattr(os, name, counted)
        action()

    return run


@pytest.mark.parametrize("case", ["next step", "same step again"])
def test_killed_at_every_system_call(tmp_path, case):
    save(tmp_path, 1)
    step = 2 if case == "next step" else 1

    def action():
        save(tmp_path, step, servers=1)
        checkpoint.prune(tmp_path, 1)

    steps, instant = [], 0
    while True:
        instant += 1
        status = in_child(killed_at(instant, action))
        steps.append((load(tmp_path), Checkpoint.open(tmp_path).servers))
        if status == 0:
            break
        assert status == -signal.SIGKILL
        if steps[-1] == (step, 1):  # whole before the kill: go on from the old state
            for directory in generations.generations(tmp_path):
                generations._remove(directory)
            save(tmp_path, 1)
    assert instant > 20
    assert (1, 2) in steps and steps[-1] == (step, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{step:08d}"]


def test_killed_at_random_moments(tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path; import test_checkpoint_generations as t, itertools\n"
        "for step in itertools.count(int(sys.argv[3])):\n"
        "    t.save(Path(sys.argv[1]), step)\n"
        "    t.checkpoint.prune(Path(sys.argv[1]), 2)\n"
        "    print(step, flush=True)\n"
    )
    save(tmp_path, 1)
    generator = random.Random(1)
    last = 1
    for _ in range(6):
        command = [sys.executable, "-c", program, str(tmp_path), str(Path(__file__).parent), str(last + 1)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        printed = int(child.stdout.readline())  # it is under way
        time.sleep(generator.random() * 0.15)
        child.kill()
        printed = [printed, *map(int, child.stdout.read().split())][-1]
        child.wait()
        child.stdout.close()
        last = load(tmp_path)
        assert last >= printed
    save(tmp_path, last + 1)
    checkpoint.prune(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == [f"step-{last + 1:08d}"]


def test_without_a_manifest_a_directory_does_not_count(tmp_path):
    assert checkpoint.newest(tmp_path) is None and checkpoint.newest(tmp_path / "nothing") is None
    write_parts(tmp_path, 3)
    assert checkpoint.newest(tmp_path) is None
    with pytest.raises(CheckpointError, match=r"holds no whole checkpoint:\n.*step-00000003 .*no manifest\.json"):
        Checkpoint.open(tmp_path)
    save(tmp_path, 2)
    assert checkpoint.newest(tmp_path) == tmp_path / "step-00000002"
    with pytest.raises(CheckpointError, match=r"no such file or directory"):
        Checkpoint.open(tmp_path / "nothing")
    (tmp_path / "other").mkdir()
    with pytest.raises(CheckpointError, match=r"other is not a checkpoint"):
        Checkpoint.open(tmp_path / "other")


def test_a_directory_that_moved_is_still_whole(tmp_path):
    save(tmp_path / "a", 1)
    (tmp_path / "a").rename(tmp_path / "b")
    assert load(tmp_path / "b") == 1


def test_commit_checks_files_and_records(tmp_path):
    directory, records = write_parts(tmp_path, 1, servers=3)
    with pytest.raises(CheckpointError, match=r"expected one record each of .*server-002\.h5, found dense\.h5, server"):
        checkpoint.commit(directory, 1, records[1:], {})
    with pytest.raises(CheckpointError, match=r"expected the name step-00000002"):
        checkpoint.commit(directory, 2, records, {})
    path = directory / "server-001.h5"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(
        CheckpointError, match=rf"server-001\.h5: expected {len(data)} bytes, found {len(data) - 1}"
    ) as e:
        checkpoint.commit(directory, 1, records, {})
    assert socket.gethostname() in str(e.value)
    path.unlink()
    with pytest.raises(CheckpointError, match=rf"server-001\.h5: expected {len(data)} bytes, found no file.*all hosts"):
        checkpoint.commit(directory, 1, records, {})
    assert checkpoint.newest(tmp_path) is None
    path.write_bytes(data)
    checkpoint.commit(directory, 1, records, {})
    assert load(tmp_path) == 1


def test_commit_checks_that_shards_cover_the_table(tmp_path):
    def write(spans, **change):
        directory = checkpoint.begin(tmp_path, 1)
        records = [checkpoint.write_dense(directory, {"w": np.ones(1)}, {}, {}, {})]
        for server, (first, count) in enumerate(spans):
            fields = {"name": "e", "rows": 10, "dim": 1} | (change if server else {})
            shard = TableShard(kind="block", first=first, stride=1, values=np.ones((count, fields["dim"])), **fields)
            records.append(checkpoint.write_server(directory, server, len(spans), [shard]))
        checkpoint.commit(directory, 1, records, {})

    with pytest.raises(CheckpointError, match="'e': the shards hold 9 of 10 rows"):
        write([(0, 5), (5, 4)])
    with pytest.raises(CheckpointError, match=r"'e': server-000\.h5 and server-001\.h5 hold the same rows"):
        write([(0, 6), (5, 4)])
    with pytest.raises(CheckpointError, match=r"'e': server-001\.h5 says dim 2, server-000\.h5 says 1"):
        write([(0, 5), (5, 5)], dim=2)
    with pytest.raises(CheckpointError, match="'w' is both a dense parameter and a table"):
        write([(0, 10), (0, 1)], name="w", rows=1)
    write([(0, 10), (10, 0)])


def test_a_whole_generation_is_not_written_into(tmp_path):
    directory = save(tmp_path, 1)
    with pytest.raises(CheckpointError, match="already holds a whole generation; call begin"):
        checkpoint.write_dense(directory, {}, {}, {}, {})
    with pytest.raises(CheckpointError, match="no such directory on this host; call begin"):
        checkpoint.write_server(tmp_path / "step-00000002", 0, 1, [])


def test_the_same_step_again(tmp_path):
    save(tmp_path, 5, servers=3)
    directory, records = write_parts(tmp_path, 5, servers=1)
    assert checkpoint.newest(tmp_path).name == "step-00000005.replaced" and load(tmp_path) == 5
    write_parts(tmp_path, 5, servers=2)  # again, after a failure: what counts still counts
    assert Checkpoint.open(tmp_path).servers == 3
    directory, records = write_parts(tmp_path, 5, servers=1)
    checkpoint.commit(directory, 5, records, {})
    assert Checkpoint.open(tmp_path).servers == 1 and load(tmp_path) == 5
    assert [path.name for path in checkpoint.prune(tmp_path, 3)] == ["step-00000005.replaced"]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]


def test_the_same_step_many_times(tmp_path):
    """Without pruning between: the one before, moved aside, is in nobody's way."""
    for servers in (1, 2, 3, 4):
        save(tmp_path, 5, servers)
        assert Checkpoint.open(tmp_path).servers == servers and load(tmp_path) == 5
        assert checkpoint.newest(tmp_path).name == "step-00000005"


def test_prune(tmp_path):
    for step in (10, 20, 30, 40):
        save(tmp_path, step)
    write_parts(tmp_path, 35)
    (checkpoint.begin(tmp_path, 15) / ".dense.h5.tmp").write_bytes(b"half")
    write_parts(tmp_path, 50)
    (tmp_path / "step-00000010" / "notes.txt").write_text("mine")
    (tmp_path / "mine").mkdir()
    with pytest.raises(CheckpointError, match="keep is 0"):
        checkpoint.prune(tmp_path, 0)
    removed = checkpoint.prune(tmp_path, 2)
    assert [path.name for path in removed] == ["step-00000035", "step-00000020", "step-00000015", "step-00000010"]
    left = ["mine", "step-00000010", "step-00000030", "step-00000040", "step-00000050"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left
    assert [path.name for path in (tmp_path / "step-00000010").iterdir()] == ["notes.txt"]
    assert checkpoint.newest(tmp_path).name == "step-00000040"
    assert checkpoint.prune(tmp_path / "nothing", 1) == []


def test_the_newest_is_the_one_committed_last(tmp_path, monkeypatch):
    """A shorter run in the directory of a longer one: its lower steps are the newer ones, whatever the clock says."""
    save(tmp_path, 40)
    save(tmp_path, 50)
    assert load(tmp_path) == 50
    save(tmp_path, 10)
    assert load(tmp_path) == 10
    ahead = checkpoint.Checkpoint.open(tmp_path).created

    class Slow(generations.datetime):
        @classmethod
        def now(cls, zone):
            return generations.datetime(2020, 1, 1, tzinfo=zone)

    monkeypatch.setattr(generations, "datetime", Slow)
    save(tmp_path, 20)
    assert checkpoint.Checkpoint.open(tmp_path).created > ahead and load(tmp_path) == 20
    assert [path.name for path in checkpoint.prune(tmp_path, 2)] == ["step-00000050", "step-00000040"]


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    save(tmp_path, 1)

    def action():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        directory = checkpoint.begin(tmp_path, 2)
        with pytest.raises(CheckpointError, match=r"dense\.h5: cannot be written.*older generations are untouched"):
            checkpoint.write_dense(directory, {"w": np.ones(100_000)}, {}, {}, {})
        assert list(directory.iterdir()) == []

    assert in_child(action) == 0
    assert load(tmp_path) == 1


def test_a_disk_that_fills_while_a_table_is_written(tmp_path, monkeypatch):
    save(tmp_path, 1)
    directory = checkpoint.begin(tmp_path, 2)
    real, left = os.pwrite, [3]

    def pwrite(descriptor, data, offset):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[: len(data) // 2 or 1], offset)  # a short write is not an error

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(CheckpointError, match=r"server-000\.h5: cannot be written.*No space left"):
        checkpoint.write_server(directory, 0, 1, [TableShard("e", ROWS, DIM, "block", 0, 1, values_of(2))])
    assert list(directory.iterdir()) == []
    left[0] = 10**6
    records = [checkpoint.write_server(directory, 0, 1, [TableShard("e", ROWS, DIM, "block", 0, 1, values_of(2))])]
    records.append(checkpoint.write_dense(directory, {"w": values_of(2)[:2]}, {}, {}, {}))
    checkpoint.commit(directory, 2, records, {})
    assert load(tmp_path) == 2


def test_a_missing_or_short_file_is_named_on_opening(tmp_path):
    directory = save(tmp_path, 1)
    path = directory / "server-001.h5"
    data = path.read_bytes()
    path.write_bytes(data[:100])
    with pytest.raises(CheckpointError, match=rf"server-001\.h5: expected {len(data)} bytes, found 100"):
        Checkpoint.open(tmp_path)
    assert [(damage.file, "cut short" in damage.text) for damage in checkpoint.verify(tmp_path)] == [(path.name, True)]
    path.unlink()
    assert [(damage.file, "cannot be read" in damage.text) for damage in checkpoint.verify(tmp_path)] == [
        (path.name, True)
    ]


def test_one_flipped_bit_anywhere_is_found_and_placed(tmp_path):
    directory = save(tmp_path, 1)
    with h5py.File(directory / "server-001.h5") as file:
        dataset = file["/tables/e/values"]
        begin = dataset.id.get_offset()
        inside = range(begin, begin + dataset.id.get_storage_size())
    generator = random.Random(2)
    for path in directory.glob("*.h5"):
        data = path.read_bytes()
        for position in [0, len(data) - 1, inside[0], inside[-1], *(generator.randrange(len(data)) for _ in range(60))]:
            damaged = bytearray(data)
            damaged[position] ^= 1 << generator.randrange(8)
            path.write_bytes(damaged)
            (damage,) = checkpoint.verify(directory)
            assert damage.file == path.name
            if path.name == "server-001.h5":
                assert damage.part == ("/tables/e/values" if position in inside else "the HDF5 structure")
        path.write_bytes(data)
    assert checkpoint.verify(directory) == []


def test_the_digest_of_the_whole_file_counts_whatever_its_marks_say(tmp_path):
    directory, (record, *_) = write_parts(tmp_path, 1)
    assert verify_file(directory, record) is None
    assert verify_file(directory, replace(record, sha256="0" * 64)).file == record.name
    content = bytearray((directory / record.name).read_bytes())
    content[-1] ^= 1
    (directory / record.name).write_bytes(content)
    for marks in ((), record.marks[:1], record.marks[:-1]):
        assert verify_file(directory, replace(record, marks=marks)).file == record.name


def test_damage_names_the_rows_of_a_large_table(tmp_path, monkeypatch):
    monkeypatch.setattr("hybridmpi.checkpoint.files.MARK_BYTES", 10 * DIM * 4)
    directory = save(tmp_path, 1, servers=1)
    with h5py.File(directory / "server-000.h5") as file:
        offset = file["/tables/e/values"].id.get_offset() + 25 * DIM * 4
    path = directory / "server-000.h5"
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    (damage,) = checkpoint.verify(directory)
    assert damage.part == "/tables/e/values[20:30]"


def test_one_flipped_bit_in_the_manifest_ends_the_generation(tmp_path):
    save(tmp_path, 1)
    path = save(tmp_path, 2) / "manifest.json"
    data = path.read_bytes()
    generator = random.Random(3)
    for position in [0, len(data) - 1, *(generator.randrange(len(data)) for _ in range(200))]:
        damaged = bytearray(data)
        damaged[position] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        assert checkpoint.newest(tmp_path).name == "step-00000001"
        with pytest.raises(CheckpointError, match=r"manifest\.json: (damaged|unreadable)"):
            checkpoint.verify(path.parent)
    path.write_bytes(data)
    assert checkpoint.newest(tmp_path) == path.parent


def test_a_disk_that_is_full_at_any_byte_is_one_error(tmp_path):
    """HDF5 meets none of it: what it could not write as it closes a file would end the program."""
    whole = save(tmp_path, 1)
    words = [f"word{number}" for number in range(3000)]

    def action():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        refused = 0
        for limit in [0, 1, 95, 96, 2000, *range(4096, 250_000, 12_288)]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            directory = tmp_path / "step-00000002"
            directory.mkdir(exist_ok=True)
            try:
                checkpoint.write_dense(directory, {"w": np.ones(9000), "s": np.ones(())}, {}, {}, {"a": 1}, words)
            except CheckpointError as error:
                refused += 1
                assert "dense.h5: cannot be written" in str(error) and "it needs" in str(error), error
                assert list(directory.iterdir()) == []
            try:
                export(Contents(whole), tmp_path / "out.h5", None, True, True)
            except (CheckpointError, UsageError) as error:  # the latter before it begins
                assert (
                    "cannot be written" in str(error)
                    and "out.h5" in str(error)
                    and not (tmp_path / ".out.h5.tmp").exists()
                )
        assert 5 < refused < 25

    assert in_child(action) == 0
    assert load(tmp_path) == 1
