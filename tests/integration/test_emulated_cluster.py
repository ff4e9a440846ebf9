"""benchmarks/emulated_cluster: links keep their rates, MPI runs across the hosts, whatever happens nothing is left."""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from launching import ROOT, processes_of

sys.path.insert(0, str(ROOT / "benchmarks"))

from emulated_cluster import Cluster, command, links, namespaces, placement, reason_against  # noqa: E402

from hybridmpi.collectives.ring import bytes_sent  # noqa: E402
from hybridmpi.errors import UsageError  # noqa: E402

REASON = reason_against()
needs_cluster = pytest.mark.skipif(REASON is not None, reason=f"no emulated cluster here: {REASON}")
PROGRAM = [sys.executable, str(ROOT / "benchmarks" / "emulated_cluster")]
SECONDS_TO_END = 5.0
# A link carries 1,448 bytes of payload in a frame of 1,514, and a little more just after a pause.
MOST, LEAST = 1.0, 0.88

ELEMENTS = 1 << 20
ALLREDUCE = f"""
import numpy as np
import hybridmpi as hm
from hybridmpi.collectives import ALGORITHMS, Group, finish
with hm.World(servers=0) as world:
    values = np.arange({ELEMENTS}, dtype=np.float32) % 1000
    mine = values * (world.rank + 1)
    group = Group(world.compute, [(0, rank) for rank in range(world.size)])
    finish(ALGORITHMS["ring"](group, mine), world.wait_until)
    right = np.array_equal(mine, values * sum(range(1, world.size + 1)))
    nodes = world.gather((world.nodes, world.node.Get_size(), right))
    if world.on_root():
        print("nodes", set(nodes))
"""
PING_PONG = """
import time
from mpi4py import MPI
rank, byte, seconds = MPI.COMM_WORLD.Get_rank(), bytearray(1), []
for _ in range(20):
    started = time.perf_counter()
    if rank == 0:
        MPI.COMM_WORLD.Send(byte, 1)
    MPI.COMM_WORLD.Recv(byte, 1 - rank)
    if rank == 1:
        MPI.COMM_WORLD.Send(byte, 0)
    seconds.append(time.perf_counter() - started)
if rank == 0:
    print("microseconds", min(seconds) / 2 * 1e6)
"""
WHERE = """
import os, platform
from mpi4py import MPI
hosts = MPI.COMM_WORLD.gather((platform.node(), os.environ["SET_BY_THE_TEST"]))
if hosts:
    print("hosts", *(name for name, _ in hosts), "set", *{value for _, value in hosts})
"""
FAULTY = "from mpi4py import MPI; import os, sys, time; rank = MPI.COMM_WORLD.Get_rank(); "
ENDLESS = FAULTY + "rank or print('started', flush=True); time.sleep(600)"


def traces() -> dict[str, object]:
    """Return what a cluster could leave on the machine, processes aside."""
    run = lambda *argv: subprocess.run(argv, capture_output=True, text=True).stdout  # noqa: E731
    return {
        "namespaces": run("ip", "netns", "list"),
        "interfaces": sorted(os.listdir("/sys/class/net")),
        "routes": run("ip", "route"),
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "shared memory": sorted(name for name in os.listdir("/dev/shm") if name == "tmp" or "hosts" in name),
        "name": os.uname().nodename,
        "hosts": Path("/etc/hosts").read_text(),
    }


def alive(pids: set[int]) -> set[int]:
    """Return those that still run; one that has ended may stay a zombie until its parent looks."""
    found = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        found |= {pid} if state not in "ZX" else set()
    return found


def members(maker: int) -> set[int]:
    """Return the processes in the PID namespace of the cluster that process `maker` made."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        if namespaces._maker(int(entry)) == maker:
            space = namespaces._link(f"/proc/{entry}/ns/pid_for_children")
            every = {int(other) for other in os.listdir("/proc") if other.isdigit()}
            return {pid for pid in every if namespaces._link(f"/proc/{pid}/ns/pid") == space}
    return set()


def assert_ends(pids: set[int]) -> None:
    assert pids, "there was nothing to end"
    deadline = time.monotonic() + SECONDS_TO_END
    while left := alive(pids):
        assert time.monotonic() < deadline, f"processes {sorted(left)} are left"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def pair():
    """Two hosts that several tests use one after the other."""
    with Cluster(hosts=2) as cluster:
        yield cluster


@needs_cluster
def test_nothing_is_left():
    before = traces()
    with Cluster(hosts=3, rate="500mbit", groups=2, trunk="100mbit", delay_us=100) as cluster:
        assert traces() == before, "something outside the namespaces has changed"
        pids = cluster.spaces.members()
        assert len(pids) == 1 + 3 + 1, "the root, the hosts, the one that delays"
        for name in cluster.layout.names:
            assert cluster.spaces.do(name, ["hostname"]).strip() == name
            assert cluster.spaces.do(name, ["ip", "route", "show", "default"]) == ""
            assert cluster.spaces.do(name, ["ls", "/dev/shm"]) == "tmp\n"
    assert alive(pids) == set() and traces() == before
    with pytest.raises(ZeroDivisionError), Cluster(hosts=1) as cluster:
        pids = cluster.spaces.members()
        raise ZeroDivisionError
    assert pids and alive(pids) == set() and traces() == before


@needs_cluster
def test_what_cannot_be_connected_is_taken_down(monkeypatch):
    monkeypatch.setattr(links, "limit", lambda device, rate: f"qdisc add dev {device} root nonsense\n")
    before = traces()
    with pytest.raises(Exception, match=r"'tc -batch -' failed on the switch: .*nonsense"), Cluster(hosts=2):
        pass
    assert members(os.getpid()) == set() and traces() == before


@needs_cluster
def test_links_keep_their_rates():
    """Rates that two busy cores can carry; a slow measurement is repeated by `check` itself."""
    with Cluster(hosts=4, rate="200mbit", groups=2, trunk="50mbit") as cluster:
        found = {rate.name: rate for rate in cluster.check()}
        assert list(found) == ["n1 -> n2", "n2 -> n1", "n3 -> n4", "n4 -> n3", "group 0 -> 1", "group 1 -> 0"]
        for rate in found.values():
            assert rate.limit == (50 if "group" in rate.name else 200)
            assert LEAST * rate.limit < rate.measured < MOST * rate.limit, str(rate)
        (left, entered), (left_other, entered_other) = cluster.trunk_bytes()
        assert (left, entered) == (entered_other, left_other) and min(left, entered) > 50e6 / 8 * 0.2


@needs_cluster
def test_a_delay_is_kept():
    """The fastest of twenty messages: other load on the cores can only add."""
    with Cluster(hosts=2, delay_us=2000) as cluster:
        outcome = cluster.run(["python", "-c", PING_PONG], timeout=60)
        assert outcome.code == 0, str(outcome)
        assert 2000 < float(outcome.output.split("microseconds")[1]) < 3500, str(outcome)


@needs_cluster
def test_world_sees_the_hosts_and_the_trunk_counts_a_ring():
    """Of a ring's four edges two cross the trunk when neighbours are together, all four when they are apart: the
    kernel's bytes are those that `ring` says it sends, and the little that MPI and TCP add."""
    sent = bytes_sent(ELEMENTS, 4, 4, 0)
    with Cluster(hosts=4, rate="1gbit", groups=2, trunk="250mbit") as cluster:
        for where, edges in ((placement.BLOCK, 1), (placement.ROUND_ROBIN, 2)):
            before = cluster.trunk_bytes()[0]
            outcome = cluster.run(["python", "-c", ALLREDUCE], placement=where, timeout=60)
            assert outcome.code == 0 and "nodes {(4, 1, True)}" in outcome.output, str(outcome)
            for now, then in zip(cluster.trunk_bytes()[0], before, strict=True):
                assert edges * sent < now - then < 1.05 * edges * sent, f"{where}: {now - then:,}"


@needs_cluster
def test_ranks_are_where_they_were_placed():
    with Cluster(hosts=3, groups=2, trunk="1gbit") as cluster:
        for where in placement.PLACEMENTS:
            env = {"SET_BY_THE_TEST": "a value"}
            outcome = cluster.run(["python", "-c", WHERE], ranks=5, env=env, placement=where, timeout=60)
            order = placement.shares(cluster.layout.members, 5, where)
            expected = f"hosts {' '.join(placement.hosts_of_ranks(order, where))} set a value\n"
            assert outcome.code == 0 and expected in outcome.output, str(outcome)


@needs_cluster
@pytest.mark.parametrize("fault", ["MPI.COMM_WORLD.Abort(3)", "os.kill(os.getpid(), 9)"])
def test_a_job_that_fails_leaves_the_hosts_only(pair, fault):
    before = pair.spaces.members()
    outcome = pair.run(["python", "-c", f"{FAULTY}rank == 1 and {fault}; time.sleep(600)"], timeout=60)
    assert outcome.code != 0 and outcome.seconds < 30, str(outcome)
    assert pair.spaces.members() == before


@needs_cluster
def test_a_job_that_hangs_is_ended(pair):
    before = pair.spaces.members()
    with pytest.raises(TimeoutError, match="no end after 3 s"):
        pair.run(["python", "-c", ENDLESS], timeout=3)
    assert pair.spaces.members() == before
    assert pair.run(["python", "-c", "print('fine')"], timeout=60).output.count("fine") == 2


@needs_cluster
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_killed_leaves_nothing(number):
    before = traces()
    process = subprocess.Popen(
        [*PROGRAM, "--hosts", "2", "--", "python", "-c", ENDLESS],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout.readline() == "started\n"
        pids = members(process.pid)
        assert len(pids) > 1 + 2, "the root, two hosts and a job"
        process.send_signal(number)
        code = process.wait(SECONDS_TO_END)
        assert_ends(pids)
        assert code == (-number if number == signal.SIGKILL else 128 + number)
        assert traces() == before
    finally:
        process.kill()
        process.communicate()
    assert processes_of(process.pid) == ()


@needs_cluster
def test_leftovers_are_ended(pair):
    """A child of the maker holds the pipe: the only way in which a cluster can outlive its maker."""
    maker = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from emulated_cluster import Cluster
cluster = Cluster(hosts=1).__enter__()
if os.fork() == 0:
    time.sleep(60)
print("ready", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", maker, str(ROOT / "benchmarks")],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        pids = members(process.pid)
        process.kill()
        process.wait()
        time.sleep(0.2)
        assert alive(pids) == pids, "this test makes no leftover"
        done = subprocess.run([*PROGRAM, "--down"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert f"ended the cluster that process {process.pid} left behind" in done.stdout
        assert f"left alone the cluster that process {os.getpid()} is using" in done.stdout
        assert_ends(pids)
        assert pair.spaces.do("n1", ["hostname"]) == "n1\n", "a cluster in use was ended"
    finally:
        for left in processes_of(process.pid):
            os.kill(left, signal.SIGKILL)
        process.stdout.close()


@needs_cluster
def test_the_command_says_what_it_ran():
    done = subprocess.run(
        [*PROGRAM, "--hosts", "2", "--groups", "2", "--trunk", "1gbit", "--mpi-env", "SET_BY_THE_TEST=x"]
        + ["--", "python", "-c", WHERE],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and done.stdout == "hosts n1 n2 set x\n", done.stdout + done.stderr
    for words in ("2 hosts in 2 groups", "n1 | n2", "SET_BY_THE_TEST=x", " -n 2 ", "bytes left it over the trunk"):
        assert words in done.stderr


def test_without_root_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)
    assert command.main(["--", "python", "-c", ""]) == 2
    assert "need root" in capsys.readouterr().err
    assert command.main(["--down"]) == 2


def test_without_iproute2_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces.shutil, "which", lambda name: None if name == "tc" else name)
    assert command.main([]) == 2
    assert "'tc' was not found: install iproute2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hosts": 0}, "0 hosts: expected 1 to 64"),
        ({"hosts": 2, "groups": 3, "trunk": "1gbit"}, "3 groups of 2 hosts"),
        ({"groups": 2}, "expected the rate of the trunk"),
        ({"trunk": "1gbit"}, "expected no trunk with one group"),
        ({"rate": "fast"}, "rate 'fast': expected at least 1mbit"),
        ({"rate": "1kbit"}, "rate '1kbit': expected at least 1mbit"),
        ({"delay_us": -1}, "delay of -1 us"),
    ],
)
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(UsageError, match=words):
        Cluster(**options)


@pytest.mark.parametrize("hosts", range(1, 9))
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 4, 7, 16])
def test_placement(hosts, groups, ranks):
    if groups > hosts:
        return
    layout = links.Layout(hosts, groups, 10**9, 10**9 if groups > 1 else None)
    group_of = {name: group for group, names in enumerate(layout.members) for name in names}
    assert list(group_of) == layout.names and max(map(len, layout.members)) - min(map(len, layout.members)) <= 1
    for where in placement.PLACEMENTS:
        placed = placement.hosts_of_ranks(placement.shares(layout.members, ranks, where), where)
        counts = [placed.count(name) for name in set(placed)]
        assert len(placed) == ranks and len(counts) == min(ranks, hosts) and max(counts) - min(counts) <= 1
        crossings = sum(group_of[a] != group_of[b] for a, b in pairwise(placed))
        if where == placement.BLOCK:
            assert crossings == len({group_of[name] for name in placed}) - 1
        elif groups > 1 and hosts % groups == 0:
            assert crossings == ranks - 1


def test_rates_and_buckets():
    assert [links.parse_rate(text) for text in ("1gbit", "2.5gbit", "250mbit", "2000kbit")] == [
        1_000_000_000,
        2_500_000_000,
        250_000_000,
        2_000_000,
    ]
    assert links.burst(250_000_000) == 128 << 10 and links.burst(10**10) == 1_250_000
