"""The all-reduce's selector without MPI: formulas against numbers worked out by hand, choices from made-up times."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmpi.collectives import selection
from hybridmpi.collectives.calibration import fit, partner
from hybridmpi.collectives.cost import FORMULAS, Link, Network, predict
from hybridmpi.collectives.selection import Choice, choose, decide, read, size_class, worth_timing, write
from hybridmpi.collectives.tuning import FILL, MOST_CALLS, repetitions

# Latency a, seconds per byte b, seconds per byte added g, of links near and across the trunk.
A1, B1, A2, B2, G = 1e-6, 1e-9, 8e-6, 5e-9, 2e-10
N = 1 << 20


def flat(ranks):
    """Ranks on nodes of their own, all near each other."""
    return Network([(0, rank) for rank in range(ranks)], {"supernode": Link(A1, B1)}, G)


def grouped(supernode_of):
    """The same with a trunk between supernodes."""
    places = [(supernode, rank) for rank, supernode in enumerate(supernode_of)]
    return Network(places, {"supernode": Link(A1, B1), "trunk": Link(A2, B2)}, G)


# -- formulas ----------------------------------------------------------------------------------------------------------


def test_recursive_doubling_sends_all_in_every_step():
    assert predict("recursive_doubling", N, flat(8)) == pytest.approx(3 * (A1 + N * B1 + N * G))


def test_halving_doubling_sends_half_of_it_in_every_step():
    # 2 lg p a + 2 (p - 1) / p n b + (p - 1) / p n g
    expected = 2 * 3 * A1 + 2 * 7 / 8 * N * B1 + 7 / 8 * N * G
    assert predict("halving_doubling", N, flat(8)) == pytest.approx(expected)


@pytest.mark.parametrize("algorithm", ["recursive_doubling", "halving_doubling"])
def test_ranks_beyond_a_power_of_two_cost_two_messages(algorithm):
    fold = 2 * (A1 + N * B1) + N * G
    assert predict(algorithm, N, flat(6)) == pytest.approx(predict(algorithm, N, flat(4)) + fold)


def test_ring():
    assert predict("ring", N, flat(5)) == pytest.approx(2 * 4 * (A1 + N / 5 * B1))


def test_near_first_pairing_keeps_the_trunk_free():
    """swCaffe's two formulas for p = 16, q = 4: ranks in blocks, as groups sort them, and dealt out in turn."""
    p, q = 16, 4
    common = (p - 1) / p * N * G
    blocks = predict("halving_doubling", N, grouped([rank // q for rank in range(p)]))
    near, trunk = 2 * (q - 1) / q * N, 2 * (p - q) / (p * q) * N
    assert blocks == pytest.approx(2 * 2 * A1 + near * B1 + 2 * 2 * A2 + trunk * B2 + common)
    dealt = predict("halving_doubling", N, grouped([rank % (p // q) for rank in range(p)]))
    near, trunk = 2 * (q - 1) / p * N, 2 * (p - q) / p * N
    assert dealt == pytest.approx(2 * 2 * A1 + near * B1 + 2 * 2 * A2 + trunk * B2 + common)


def test_a_ring_has_the_trunk_for_itself():
    # The trunk was measured with four pairs at once, and the ring has one rank there: B2 / 4, near links take B1.
    assert predict("ring", N, grouped([0] * 4 + [1] * 4)) == pytest.approx(2 * 7 * (A2 + N / 8 * max(B2 / 4, B1)))
    # With one rank in a supernode, it was measured with one pair.
    assert predict("ring", N, grouped([0] * 7 + [1])) == pytest.approx(2 * 7 * (A2 + N / 8 * B2))
    # However wide the trunk, its ends are links like others.
    wide = Network(grouped([0] * 4 + [1] * 4).places, {"supernode": Link(A1, B1), "trunk": Link(A2, B1)}, G)
    assert predict("ring", N, wide) == pytest.approx(2 * 7 * (A2 + N / 8 * B1))


def test_two_level():
    """Two supernodes of four: each rank sums a quarter of four, exchanges it with one across, and sends it to three."""
    network = grouped([0] * 4 + [1] * 4)

    def inside_and_across(n):
        # Three receives at once, twice: the bytes of three, the latency of one and of two that follow it.
        inside = 2 * (A1 + 3 * n / 4 * B1) + 2 * 2 * A1 + 3 * n / 4 * G
        # A ring of two: 2 messages of an eighth, over the trunk that four lanes were measured to share.
        return inside, 2 * (A2 + n / 8 * B2) + n / 4 * G

    assert predict("two_level", N, network) == pytest.approx(sum(inside_and_across(N)))
    # 16 MiB go in four pieces: but for the ends, the slower part hides the other.
    inside, across = inside_and_across(16 * N)
    expected = (inside + across) / 4 + max(inside, across) * 3 / 4
    assert predict("two_level", 16 * N, network) == pytest.approx(expected)


def test_who_has_nobody_near_pays_for_the_way_across_only():
    assert predict("two_level", N, flat(3)) == pytest.approx(2 * 2 * (A1 + N / 3 * B1) + N * G)
    assert predict("two_level", N, grouped([0, 1])) == pytest.approx(2 * (A2 + N / 2 * B2) + N * G)


def test_the_largest_supernode_counts():
    # Three send to one lane, two of them near: 2 n received and added, and sent back.
    expected = 2 * (A1 + 2 * N * B1) + 2 * A1 + 2 * N * G + 2 * (A2 + N / 2 * B2) + N * G
    assert predict("two_level", N, grouped([0, 1, 1, 1])) == pytest.approx(expected)
    assert predict("two_level", N, grouped([0, 0, 0, 1])) == pytest.approx(expected)


@pytest.mark.parametrize("algorithm", FORMULAS)
def test_one_rank_takes_no_time_and_more_bytes_take_more(algorithm):
    assert predict(algorithm, N, Network([(0, 0)], {}, G)) == 0
    for network in (flat(2), flat(7), grouped([0, 0, 1, 1, 1])):
        times = [predict(algorithm, n, network) for n in (4, 1000, N, 16 * N)]
        assert times[0] > 0 and times == sorted(times) and times[0] < times[-1]


# -- calibration -------------------------------------------------------------------------------------------------------


def partners(places, name):
    return [partner(places, index, name) for index in range(len(places))]


def test_partners_are_as_far_as_the_level_says():
    places = [(0, 0), (0, 0), (0, 1), (0, 1), (1, 2), (1, 2)]
    assert partners(places, "node") == [1, 0, 3, 2, 5, 4]
    assert partners(places, "supernode") == [2, 3, 0, 1, None, None]
    assert partners(places, "trunk") == [4, 5, None, None, 0, 1]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12))
def test_partners_are_mutual(pairs):
    places = sorted((supernode, 3 * supernode + node) for supernode, node in pairs)
    for depth, name in enumerate(("trunk", "supernode", "node")):
        found = partners(places, name)
        for index, other in enumerate(found):
            if other is not None:
                assert found[other] == index != other
                assert places[index][:depth] == places[other][:depth]
                assert name == "node" or places[index][: depth + 1] != places[other][: depth + 1]
        # A level that two ranks are apart is measured.
        apart = [p for p in places if p[:depth] == places[0][:depth]]
        if name != "node" and len({p[: depth + 1] for p in apart}) > 1:
            assert any(other is not None for other in found)


def test_a_link_goes_through_both_measurements():
    link = fit((1000, A1 + 1000 * B1), (9000, A1 + 9000 * B1))
    assert (link.latency, link.per_byte) == (pytest.approx(A1), pytest.approx(B1))


def test_disturbed_measurements_make_no_impossible_link():
    faster = fit((1000, 5e-6), (9000, 4e-6))
    assert (faster.latency, faster.per_byte) == (5e-6, 0.0)
    steep = fit((1000, 1e-6), (9000, 1.0))
    assert steep.latency == pytest.approx(0.5e-6) and steep.per_byte == pytest.approx(1 / 8000, rel=1e-3)


def test_repetitions_fill_a_moment():
    assert repetitions(FILL / 5) == 5 and repetitions(1e-9) == MOST_CALLS and repetitions(10.0) == 1


# -- choices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nbytes", "power"), [(0, 1), (1, 1), (4, 4), (5, 4), (6, 8), (1 << 20, 1 << 20), (1448, 1024), (1449, 2048)]
)
def test_size_class(nbytes, power):
    # The border is the square root of two: 1024 sqrt(2) = 1448.15.
    assert size_class(nbytes) == power


@given(st.integers(1, 1 << 40))
def test_size_class_is_the_nearest_power_of_two(nbytes):
    power = size_class(nbytes)
    assert power & (power - 1) == 0 and 0.70 < nbytes / power < 1.42


def test_the_best_few_are_timed_and_mpi_always():
    predicted = {"a": 1.0, "b": 2.0, "c": 2.5, "d": 2.6, "mpi": 99.0}
    assert worth_timing(predicted) == ["a", "b", "c", "mpi"]
    assert worth_timing({"a": 1.0, "b": 3.1}) == ["a"]


def test_what_was_measured_decides():
    predicted = {"a": 1.0, "b": 2.0, "c": 2.5}
    assert decide(64, predicted, {"a": 5.0, "b": 4.0}) == Choice(64, "b", predicted, {"a": 5.0, "b": 4.0})
    # c was predicted to be worse than both: that both are slower than c's prediction says nothing for it.
    assert decide(64, predicted, {"a": 5.0, "b": 4.0}, []).algorithm == "b"


def test_without_time_the_prediction_decides_with_what_it_was_off_by_before():
    predicted = {"a": 1.0, "b": 2.0}
    assert decide(64, predicted, {}).algorithm == "a"
    small = Choice(8, "b", {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0})
    medium = Choice(16, "b", {"a": 1.0, "b": 1.0}, {"a": 3.0, "b": 1.1})
    assert decide(64, predicted, {}, [small]).algorithm == "a"
    assert decide(64, predicted, {}, [small, medium]).algorithm == "b"
    # c was never measured: it is taken to be off as the others are.
    later = Choice(32, "b", {"a": 1.0, "b": 1.0, "c": 2.0}, {"a": 3.0, "b": 3.0})
    assert decide(64, {"a": 1.0, "b": 1.1, "c": 1.2}, {}, [later]).algorithm == "a"


def test_mpi_must_be_clearly_faster_and_measured():
    predicted = {"a": 1.0, "mpi": 0.1}
    assert decide(64, predicted, {}).algorithm == "a"
    assert decide(64, predicted, {"a": 1.0, "mpi": 0.7}).algorithm == "a"
    assert decide(64, predicted, {"a": 1.0, "mpi": 0.6}).algorithm == "mpi"


class Clock:
    """A machine on which a call of each algorithm takes size times a rate, and `budget` seconds may be spent."""

    def __init__(self, rates, promised, budget):
        self.rates, self.promised, self.left, self.timed = rates, promised, budget, []

    def predict(self, size):
        return {name: size * rate for name, rate in self.promised.items()}

    def time_it(self, size, names):
        self.timed.append((size, tuple(names)))
        self.left -= sum(size * self.rates[name] for name in names) * 4
        return {name: size * self.rates[name] for name in names}

    def choose(self, sizes):
        return choose(sizes, self.predict, self.time_it, lambda: self.left, 4)


def test_sizes_are_timed_from_the_smallest_while_there_is_time():
    rates = {"a": 3.0, "b": 2.0, "mpi": 9.0}
    clock = Clock(rates, {"a": 1.0, "b": 1.5, "mpi": 9.0}, budget=4 * 14 + 4 * 140 + 4 * 300)
    found = clock.choose([100, 10_000, 1, 10])
    # At 100 there is time for the two of our own, not for MPI's; at 10,000 for none.
    assert clock.timed == [(1, ("a", "b", "mpi")), (10, ("a", "b", "mpi")), (100, ("a", "b"))]
    assert [(choice.nbytes, choice.algorithm) for choice in found] == [(1, "b"), (10, "b"), (100, "b"), (10_000, "b")]
    assert found[-1].measured == {} and found[-1].predicted["a"] == 10_000


def test_without_any_time_nothing_is_timed():
    clock = Clock({}, {"a": 1.0, "b": 0.5}, budget=0.0)
    assert [choice.algorithm for choice in clock.choose([4, 8])] == ["b", "b"] and clock.timed == []


# -- the file ----------------------------------------------------------------------------------------------------------

CHOICES = {64: Choice(64, "ring", {"ring": 1e-5}, {"ring": 2e-5}), 8: Choice(8, "mpi")}


def test_choices_come_back_from_their_file(tmp_path):
    file = selection.cache_file(tmp_path / "new" / "folder", ["MPI 1", ["host"]])
    assert read(file) == {}
    write(file, CHOICES)
    assert read(file) == CHOICES
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_each_identity_has_a_file(tmp_path):
    identities = [["MPI 1", ["a", "b"]], ["MPI 2", ["a", "b"]], ["MPI 1", ["b", "a"]], ["MPI 1", ["a", "b"], "float16"]]
    assert len({selection.cache_file(tmp_path, identity) for identity in identities}) == len(identities)
    # Places are named tuples, and lists once they have been in JSON.
    assert selection.cache_file(tmp_path, [(0, 1)]) == selection.cache_file(tmp_path, [[0, 1]])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "null",
        "7",
        '{"a": 1}',
        "[1]",
        '[{"nbytes": 8}]',
        '[{"nbytes": null, "algorithm": "ring"}]',
        '[{"nbytes": 8, "algorithm": "ring", "colour": "red"}]',
        "\udcff",
    ],
)
def test_a_damaged_file_is_no_file(tmp_path, text):
    file = tmp_path / "choices.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read(file) == {}
    write(file, CHOICES)
    assert read(file) == CHOICES


def test_a_cut_file_is_no_file(tmp_path):
    file = tmp_path / "choices.json"
    write(file, CHOICES)
    whole = file.read_bytes()
    assert len(json.loads(whole)) == 2
    for length in range(0, len(whole), 7):
        file.write_bytes(whole[:length])
        assert read(file) == {}


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path):
    (tmp_path / "file").write_text("no folder")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        write(folder / "choices.json", CHOICES)
        assert read(folder / "choices.json") == {}
    (tmp_path / "choices.json").mkdir()  # a folder where the file should be
    write(tmp_path / "choices.json", CHOICES)
    assert read(tmp_path / "choices.json") == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["choices.json", "file"]
