"""Timelines: what a viewer is to find in the file, whatever the clocks of the ranks."""

import json

import pytest

from hybridmpi.cli.train import steps
from hybridmpi.recording import Recording
from hybridmpi.sparse.clocks import Reading, to_ours
from hybridmpi.training.timeline import Track, events, write_timeline


def recording(*work, sums=()):
    found = Recording(100)
    for name, start, stop, about in work:
        found.add(name, start, stop, **about)
    for name, start, stop in sums:
        found.add_sum(name, start, stop)
    return found


def test_a_clock_that_drifts():
    """Ahead by 5 s at first, by 6 s a hundred seconds later."""
    before, after = Reading(10.0, 15.0, 1e-6), Reading(110.0, 116.0, 1e-6)
    assert before.ahead == 5.0 and after.ahead == 6.0
    for ours in (10.0, 60.0, 110.0):
        theirs = ours + 5 + (ours - 10) / 100
        assert to_ours(theirs, before, after) == pytest.approx(ours, abs=1e-9)


def test_a_drift_that_readings_cannot_tell_is_none():
    rough, fine = Reading(10.0, 15.001, 2e-3), Reading(110.0, 115.0002, 1e-4)
    assert to_ours(65.0, rough, fine) == to_ours(65.0, fine, rough) == pytest.approx(65.0 - 0.0002 - 5)


def test_events_of_two_ranks():
    client = recording(
        ("pull", 100.2, 100.3, {"step": 7, "bytes": 64}),
        ("step 7", 100.0, 101.0, {"step": 7}),
        sums=[("s", 100.5, 100.8)],
    )
    server = recording(
        ("take push", 205.4, 205.5, {"update": 9, "client": 0}), ("update rows", 205.6, 205.7, {"update": 4})
    )
    clock = (Reading(99.0, 204.0, 1e-6), Reading(101.0, 206.0, 1e-6))
    found = list(events([Track(0, "compute 0", client), Track(3, "server 0", server, clock)], {9: 7}))
    names = {event["pid"]: event["args"]["name"] for event in found if event["name"] == "process_name"}
    assert names == {0: f"compute 0 ({client.host})", 3: f"server 0 ({server.host})"}
    work = [(e["pid"], e["name"], round(e["ts"]), round(e["dur"]), e["args"]) for e in found if e["ph"] == "X"]
    assert work == [
        (0, "step 7", 0, 1_000_000, {"step": 7}),
        (0, "pull", 200_000, 100_000, {"step": 7, "bytes": 64}),
        (3, "take push", 400_000, 100_000, {"step": 7, "update": 9, "client": 0}),
        (3, "update rows", 600_000, 100_000, {"update": 4}),
    ]
    begin, end = (event for event in found if event["ph"] in "be")
    assert (begin["id"], begin["cat"], begin["name"]) == (end["id"], end["cat"], end["name"])
    assert (round(begin["ts"]), round(end["ts"])) == (500_000, 800_000)


def test_what_lies_within_something_still_does_in_the_file():
    """Times are rounded to nanoseconds: a viewer drops what sticks out by one."""
    work, start = [], 12345.678
    for number in range(200):
        stop = start + 1.0000000004e-6 * (number + 1)
        middle = start + (stop - start) * 0.37
        work += [("step", start, stop, {}), ("a", start, middle, {}), ("b", middle, stop, {})]
        start = stop
    clock = (Reading(12345.0, 99.0, 1e-9), Reading(12346.0, 100.0000371, 1e-9))
    track = Track(1, "compute 1", recording(*work[:90]), clock)
    found = [e for e in events([track], {}) if e["ph"] == "X"]
    times = [(round(e["ts"] * 1e3), round((e["ts"] + e["dur"]) * 1e3)) for e in found]
    assert times == sorted(times, key=lambda t: (t[0], -t[1]))
    for outer, first, second in zip(times[::3], times[1::3], times[2::3], strict=True):
        assert outer[0] == first[0] and first[1] == second[0] and second[1] == outer[1]


def test_a_recording_keeps_no_more_than_its_limit():
    found = Recording(2)
    for number in range(5):
        found.add(str(number), 0.0, 1.0)
    found.add_sum("sum", 0.0, 1.0)
    assert [interval.name for interval in found.work] == ["0", "1"] and not found.sums and found.left_out == 4


def test_the_file_is_whole_or_absent(tmp_path):
    path = tmp_path / "trace.json"
    track = Track(0, "compute 0", recording(("a", 1.0, 2.0, {})))
    assert write_timeline(path, [track], {}, {"first_step": 1}) == 1
    whole = json.loads(path.read_text())
    assert whole["otherData"] == {"first_step": 1} and len(whole["traceEvents"]) == 4
    blocked = tmp_path / "blocked.json"
    blocked.mkdir()
    with pytest.raises(OSError, match="blocked"):
        write_timeline(blocked, [track], {}, {})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["blocked.json", "trace.json"]


def test_steps_to_trace():
    assert steps("10:20") == (10, 20) and steps("4:4") == (4, 4)
    for wrong in ("10", "20:10", "0:3", "a:b", "1:2:3"):
        with pytest.raises(ValueError):
            steps(wrong)
