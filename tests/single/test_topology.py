"""Host lists, Slurm's topology, and the places of ranks: each against what is expected by hand or built apart."""

import itertools
import os
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmpi.collectives.hostlist import MOST_HOSTS, expand
from hybridmpi.collectives.topology import Place, Report, Topology, arrange, discover, leaf_of
from hybridmpi.errors import LaunchError, UsageError

# -- host lists ------------------------------------------------------------------------------------------------------


@st.composite
def brackets(draw):
    """Return (text, numbers) of a bracket."""
    text, numbers = [], []
    for _ in range(draw(st.integers(1, 3))):
        low, more, width = draw(st.integers(0, 1200)), draw(st.integers(0, 12)), draw(st.integers(1, 5))
        single = draw(st.booleans())
        first = f"{low:0{width}d}"
        values = [low] if single else list(range(low, low + more + 1))
        text.append(first if single else f"{first}-{values[-1]:0{len(first)}d}")
        numbers += [f"{value:0{len(first)}d}" for value in values]
    return f"[{','.join(text)}]", numbers


NAMES = st.text("abxyzAZ019-_.", min_size=1, max_size=6).map(lambda name: (name, [name]))


@st.composite
def host_lists(draw):
    """Return (text, hosts) of a host list."""
    texts, hosts = [], []
    for _ in range(draw(st.integers(1, 4))):
        pieces = draw(st.lists(st.one_of(NAMES, brackets()), min_size=1, max_size=3))
        texts.append("".join(text for text, _ in pieces))
        hosts += ["".join(combination) for combination in itertools.product(*(choices for _, choices in pieces))]
    return draw(st.sampled_from([",", ", ", " , "])).join(texts), hosts


@given(host_lists())
def test_host_lists_name_what_they_were_made_of(made):
    text, hosts = made
    assert expand(text) == hosts
    assert expand(f"  {text}\n") == hosts
    assert expand(",".join(hosts)) == hosts, "plain names are a host list too"


@given(st.text("ab01-9[],. {", max_size=24))
def test_any_text_is_read_or_refused(text):
    try:
        hosts = expand(text)
    except UsageError as error:
        assert f'host list "{text}", position ' in str(error)
    else:
        assert hosts and not set("[], {") & set("".join(hosts))


def test_examples_of_host_lists():
    assert expand("node[01-04,7],gpu1") == ["node01", "node02", "node03", "node04", "node7", "gpu1"]
    assert expand("n[9-11]") == ["n9", "n10", "n11"]
    assert expand("n[098-101].a.org") == ["n098.a.org", "n099.a.org", "n100.a.org", "n101.a.org"]
    assert expand("r[1-2]n[01-02]") == ["r1n01", "r1n02", "r2n01", "r2n02"]
    assert expand("[1-2]") == ["1", "2"]


@pytest.mark.parametrize(
    ("text", "position", "why"),
    [
        ("", 1, "there is no host name here"),
        ("  ", 3, "there is no host name here"),
        ("a,,b", 3, "there is no host name here"),
        ("a,", 3, "there is no host name here"),
        (",a", 1, "there is no host name here"),
        ("node[1-2", 5, "'[' has no ']' of its own"),
        ("node[1,[2]]", 5, "'[' has no ']' of its own"),
        ("node1-2]", 8, "']' has no '[' before it"),
        ("node1;node2", 6, "';' cannot be in a host name"),
        ("node1 node2", 6, "' ' cannot be in a host name"),
        ("knöten1", 3, "'ö' cannot be in a host name"),
        ("node[]", 6, "'' is neither a number nor a range"),
        ("node[1,]", 8, "'' is neither a number nor a range"),
        ("node[1-2-3]", 6, "'1-2-3' is neither a number nor a range"),
        ("node[1,a-b]", 8, "'a-b' is neither a number nor a range"),
        ("node[1,²]", 8, "'²' is neither a number nor a range"),
        ("node[5,4-1]", 8, "the range '4-1' runs backwards"),
        ("node[1-010]", 6, "the numbers of '1-010' are padded differently"),
        ("node[0-99999999999999999999]", 6, "has too many digits"),
        ("node[1-100001]", 6, "more than 100,000 numbers"),
        ("a[1-400]b[1-400]", 10, "more than 100,000 hosts"),
        ("x,a[1-100000],b", 4, "more than 100,000 hosts"),
    ],
)
def test_refused_host_lists_say_where_and_why(text, position, why):
    with pytest.raises(UsageError) as caught:
        expand(text)
    message = str(caught.value)
    assert message.startswith(f'host list "{text}", position {position}: ')
    assert why in message and message.endswith("expected names and ranges such as node[01-16,20],gpu1")


def test_the_bound_itself_is_allowed_and_beyond_it_little_is_built():
    assert len(expand(f"n[1-{MOST_HOSTS}]")) == MOST_HOSTS
    started = time.process_time()
    for text in ("n[1-999999999999999999]", "n" + "[1-99999]" * 40, "n[" + ",".join(["1-99999"] * 4000) + "]"):
        with pytest.raises(UsageError, match="more than 100,000"):
            expand(text)
    assert time.process_time() - started < 2


# -- Slurm -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "pattern", "leaf"),
    [
        ("s0.s4.s8.tux1", "switch.switch.switch.node", "s8"),
        (".core.rack7.gpu27", "switch.switch.switch.node", "rack7"),
        ("s0.s[4-5].tux1", "switch.switch.node", "s[4-5]"),
        ("s4.tux1.cluster.org", "switch.node", "s4"),
        ("b8.tux1", "block.node", "b8"),
        ("tux1", "node", None),
        ("tux1.cluster.org", "node", None),
        ("s0..tux1", "switch.switch.node", None),
        ("t:0:1:2.tux1", "torus:x:y:z.node", None),
        ("tux1", "switch.node", None),
        ("s0.tux1", "switch.switch", None),
        ("", "", None),
        ("s0.tux1", "", None),
    ],
)
def test_leaf_switch_of_an_address(address, pattern, leaf):
    assert leaf_of(address, pattern) == leaf


def reports(hosts, nodes=None, addresses=None, pattern="switch.switch.node", cores=None):
    """Return one report for each host: each host a node of its own unless told otherwise."""
    nodes = nodes or [sorted(set(hosts)).index(host) for host in hosts]
    return [
        Report(10 + rank, nodes[rank], host, (cores or [0] * len(hosts))[rank], (addresses or hosts)[rank], pattern)
        for rank, host in enumerate(hosts)
    ]


def test_slurm_groups_by_leaf_in_the_order_of_ranks():
    hosts = ["c", "a", "b", "a"]
    topology = arrange(reports(hosts, addresses=["top.s2.c", "top.s1.a", "top.s2.b", "top.s1.a"], cores=[4, 2, 0, 6]))
    assert topology.places == (Place(0, 2, 4), Place(1, 0, 2), Place(0, 1, 0), Place(1, 0, 6))
    assert topology.supernode_names == ("s2", "s1") and topology.source == "Slurm"
    assert (topology.nodes, topology.supernodes) == (3, 2)
    assert topology.describe() == "4 ranks on 3 nodes in 2 supernodes (Slurm)"


def test_one_leaf_is_one_supernode():
    topology = arrange(reports(["a", "b"], addresses=["top.s1.a", "top.s1.b"]))
    assert [place.supernode for place in topology.places] == [0, 0]
    assert topology.supernode_names == ("s1",)
    assert topology.describe() == "2 ranks on 2 nodes in 1 supernode (Slurm)"


def test_without_a_leaf_on_every_rank_there_is_one_supernode():
    missing = reports(["a", "b"], addresses=["top.s1.a", "top.s2.b"])
    missing[1] = missing[1]._replace(address="", pattern="")
    topology = arrange(missing)
    assert topology.source == "none" and topology.supernode_names == ("all",)
    assert [place.supernode for place in topology.places] == [0, 0]
    assert topology.describe() == "2 ranks on 2 nodes in 1 supernode (no topology known)"


def test_variables_inherited_from_another_host_say_nothing():
    inherited = ["top.s1.a", "top.s1.a", "top.s2.c"]
    assert arrange(reports(["a", "b", "c"], addresses=inherited)).source == "none"
    # One host that is several nodes, such as two containers, rightly has one address.
    one_host = arrange(reports(["a", "a", "c"], nodes=[0, 1, 2], addresses=inherited))
    assert one_host.source == "Slurm" and [place.supernode for place in one_host.places] == [0, 0, 1]
    # So have two containers with names of their own that share memory.
    named = arrange(reports(["a", "b", "c"], nodes=[0, 0, 1], addresses=inherited))
    assert named.source == "Slurm" and [place.supernode for place in named.places] == [0, 0, 1]


def test_ranks_that_share_memory_are_in_one_supernode():
    with pytest.raises(LaunchError) as caught:
        arrange(reports(["a", "b", "b"], addresses=["top.s1.a", "top.s1.b", "top.s2.b"]))
    message = str(caught.value)
    assert "ranks 11 (host 'b') and 12 (host 'b') share the memory of node 1" in message
    assert 'SLURM_TOPOLOGY_ADDR puts one in supernode "s1" and the other in "s2"' in message
    with pytest.raises(LaunchError, match=r"job file's .*\"a\" and the other in \"b\".*put both hosts in one list"):
        arrange(reports(["a", "b"], nodes=[0, 0]), ["a", "b"])


# -- job file --------------------------------------------------------------------------------------------------------


def test_job_file_wins_over_slurm():
    hosts = ["node02", "node17", "node01", "gpu1"]
    made = reports(hosts, addresses=[f"top.s1.{host}" for host in hosts])
    topology = arrange(made, ["node[17-32],gpu1", "node[01-16]", "spare[1-9]"])
    assert [place.supernode for place in topology.places] == [0, 1, 0, 1]
    assert topology.supernode_names == ("node[01-16]", "node[17-32],gpu1")
    assert topology.describe() == "4 ranks on 4 nodes in 2 supernodes (job file)"


def test_short_and_full_host_names_are_compared():
    lists = ["node[1-2]", "node[3-4].a.org", "Node5.b.org"]
    topology = arrange(reports(["node1.a.org", "node3", "node4.A.org", "NODE2", "node5"]), lists)
    assert [place.supernode for place in topology.places] == [0, 1, 1, 0, 2]
    with pytest.raises(UsageError, match=r"host 'node5\.a\.org' .*is in none of the lists.*'node5\.b\.org' in list 3"):
        arrange(reports(["node5.a.org"]), lists)


@pytest.mark.parametrize(
    ("hosts", "lists", "message"),
    [
        (
            ["node01", "node33"],
            ["node[01-16]", "node[17-32]"],
            r"host 'node33' of rank 11 is in none of the lists; expected each host in exactly one\. "
            r"The nearest name is 'node30' in list 2 \(\"node\[17-32\]\"\): correct it, or add 'node33'",
        ),
        (["node7"], ["node[01-16]", "x"], r"'node7' .*nearest name is 'node07' in list 1 \(\"node\[01-16\]\"\)"),
        (["node01", "b", "c", "c", "d"], ["node01"], r"host 'b' of rank 11 .*\(nor are 2 other hosts\)"),
        (
            ["node01"],
            ["node[01-16]", "x,Node[16-32]"],
            r"host 'node16' is 'node16' in list 1 \(\"node\[01-16\]\"\) and 'node16' in list 2 .*take it out",
        ),
        (
            ["node1"],
            ["node1.a.org", "node1.b.org"],
            r"host 'node1' of rank 10 is 'node1\.a\.org' in list 1 .* and 'node1\.b\.org' in list 2 .*`hostname`",
        ),
        (["node1.a.org"], ["node1.a.org", "node1"], r"'node1\.a\.org' in list 1 .* and 'node1' in list 2"),
        (["node1"], ["node1", "node[2-"], r"host list \"node\[2-\", position 5: '\[' has no '\]'"),
        (["node1"], ["node1", ""], r"host list \"\", position 1"),
        (["node1"], "node1", r"supernodes = \"node1\": expected a list of host lists, such as \[\"node1\"\]"),
    ],
)
def test_refused_supernodes_say_which_host_and_list(hosts, lists, message):
    with pytest.raises(UsageError, match=message):
        arrange(reports(hosts), lists)


def test_a_host_named_twice_in_one_list_is_there_once():
    assert arrange(reports(["a", "b"]), ["a,a", "b"]).supernodes == 2


# -- discover --------------------------------------------------------------------------------------------------------


class OneRank:
    """As much of a World as discover needs: world rank 1, which computes, on node 0, with a server."""

    rank, node_of = 1, (0, 0)

    def gather(self, value):
        return [value]


def test_discover_on_one_rank(monkeypatch):
    core = min(os.sched_getaffinity(0))
    assert discover(OneRank()) == Topology((Place(0, 0, core),), ("all",), "none")
    assert discover(OneRank()).describe() == "1 rank on 1 node"
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR", f"s7.{socket.gethostname()}")
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR_PATTERN", "switch.node")
    assert discover(OneRank()) == Topology((Place(0, 0, core),), ("s7",), "Slurm")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {6, 5})
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu3")
    assert discover(OneRank(), ["gpu[1-4]"]) == Topology((Place(0, 0, 5),), ("gpu[1-4]",), "job file")
    with pytest.raises(UsageError, match=r"host 'gpu3' of rank 1 .*'gpu30' in list 1"):
        discover(OneRank(), ["gpu30"])
