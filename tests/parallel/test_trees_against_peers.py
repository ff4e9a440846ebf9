"""benchmarks/trees_against_peers.py and tree_fc_against_peers.py: made-up runs, and whole ones with a stub for every
program; the peers' models against counts by hand, differences and what must be refused."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from launching import ROOT, run_process

from hybridmpi.autograd import Parameter
from hybridmpi.bench.complete_trees import complete_trees
from hybridmpi.graphs import from_brackets
from hybridmpi.models.tree_fc import TreeFC
from hybridmpi.models.tree_lstm import TreeLSTM

sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "benchmarks" / "peers")]

import programs  # noqa: E402
import rates_by_batch as rates  # noqa: E402
import sst  # noqa: E402
import tree_fc_against_peers  # noqa: E402
import tree_fc_model  # noqa: E402
import tree_model  # noqa: E402
import trees_against_peers  # noqa: E402

pytestmark = pytest.mark.any_mpi

TREES = "(3 (2 It) (4 (2 works) (2 well)))\n\n(1 (2 It) (1 fails))\n(2 nothing)\n"


@pytest.fixture
def trees(tmp_path):
    file = tmp_path / "trees.txt"
    file.write_text(TREES, encoding="utf-8")
    return file


def ours(load, **medians):
    rows = [{"name": "other", "n": 64, "unit": "ms", "median": 1}]
    for batch, median in medians.items():
        row = {"name": "vertex", "n": int(batch[1:]), "unit": "trees/s", "median": median}
        rows += [row | {"min": median - 1, "max": median + 1}, row | {"name": "recursive", "median": 0}]
    return {"machine": {"cores": 2, "load_average": [load, 0, 0]}, "results": rows}


def peer(version, **medians):
    rows = [{"params": {"batch": int(batch[1:])}, "median": m, "min": 1, "max": 99} for batch, m in medians.items()]
    return {"version": version, "results": rows}


def test_the_best_peer_over_all_rounds_and_ratios_within_them():
    runs = {
        rates.OURS: [ours(1, b1=30, b64=120), ours(2, b1=10, b64=60)],
        "torch": [peer("torch 2", b1=10, b64=60), peer("torch 2", b1=10, b64=20)],
        rates.DYNET: [peer("dynet 2", b1=20, b64=50), peer("dynet 2", b1=5, b64=50)],
        rates.LIMIT: [{"max": 2.0, "version": "numpy 2"}, {"max": 1.0, "version": "numpy 2"}],
    }
    flop = {1: 1e7, 64: 5e6}
    found = rates.summarise(runs, flop, lambda batch: {rates.BEST: 1.15, rates.DYNET: 2.0} if batch > 1 else {})
    one, many = found["tables"][1], found["tables"][64]
    assert one["best"] == rates.DYNET and one["ratio"][rates.DYNET] == {"median": 1.75, "by_round": [1.5, 2.0]}
    assert many["best"] == rates.DYNET and many["ratio"]["torch"]["by_round"] == [2.0, 3.0]
    assert many["rows"][rates.OURS] == {"median": 90, "min": 59, "max": 121}
    assert many["limit"] == 400 and many["of_the_limit"] == {rates.OURS: 0.225, "torch": 0.1, rates.DYNET: 0.125}
    assert found["missed"] == ["batch 64 below 2 x DyNet"] and found["gflops_by_round"] == [2.0, 1.0]
    assert found["machine"]["torch"] == "torch 2" and found["load_average_by_round"] == [1, 2]
    text = rates.as_text(found)
    assert "1.80 times it (2.40, 1.20), the best peer" in text and "targets missed: batch 64 below 2 x DyNet" in text


STUB = f"""#!{sys.executable}
import json, os, sys
program, argv = sys.argv[1], sys.argv
if program.endswith("products.py"):
    os.execv({sys.executable!r}, [{sys.executable!r}, *argv[1:]])
threads = os.environ["OMP_NUM_THREADS"]
if program == "-m":
    sizes = [int(n) for n in argv[argv.index("--batch") + 1:] if n.isdigit()][:4]
    rows = [{{"name": "v", "n": n, "unit": "trees/s", "median": 9, "min": 9, "max": 9}} for n in sizes]
    machine = {{"cores": 2, "load_average": [0, 0, 0], "command": argv[1:], "threads": threads}}
    print(json.dumps({{"machine": machine, "results": rows}}))
    sys.exit()
sys.path.insert(0, os.path.dirname(program))
sys.argv = argv[1:]
if "tree_fc" in program:
    import tree_fc_model
    options = tree_fc_model.options("", ("gather", "reshape") if "torch" in program else ())
else:
    import tree_model
    options = tree_model.options("")
row = {{"median": 4, "min": 4, "max": 4}}
rows = [row | {{"params": {{"batch": n}}}} for n in options.batch]
print(json.dumps({{"version": str(vars(options)), "results": rows}}))
"""


@pytest.fixture
def whole(tmp_path, monkeypatch, capsys):
    """Return a function that runs a comparison with the stub as every Python, and returns (its text, its JSON)."""
    stub = tmp_path / "python"
    stub.write_text(STUB)
    stub.chmod(0o755)

    def run(comparison, *arguments):
        monkeypatch.setattr(comparison.sys, "executable", str(stub))
        python = ["--torch-python", str(stub), "--dynet-python", str(stub)]
        monkeypatch.setattr(sys, "argv", ["comparison", *python, "--json", "--rounds", "1", *arguments])
        assert comparison.main() == 0
        text, _, last = capsys.readouterr().out.rstrip().rpartition("\n")
        return text, json.loads(last)

    return run


def test_a_whole_comparison_of_trees(whole, trees, tmp_path):
    data = ["--data", str(trees), "--cell", "sum", "--threads", "2"]
    text, found = whole(trees_against_peers, *data, "--dgl-python", str(tmp_path / "python"))
    machine = found["machine"]
    assert machine["command"][:5] == ["-m", "hybridmpi", "bench", "dynamic", "--data"] and machine["threads"] == "2"
    assert machine["command"][6:10] == ["--cell", "sum", "--batch", "1"]
    for name, threads in (("torch", 2), ("DGL", 2), ("DyNet", 1)):
        assert f"'threads': {threads}" in machine[name] and "'width': 300, 'cell': 'sum'" in machine[name]
    assert list(found["tables"]) == ["1", "16", "64", "256"] and found["gflops_by_round"][0] > 0
    assert found["missed"] == [] and found["tables"]["1"]["ratio"]["DGL"]["median"] == 2.25
    assert text.endswith("targets missed: none")


def test_a_whole_comparison_of_tree_fc(whole, monkeypatch):
    monkeypatch.setattr(tree_fc_against_peers, "LARGE", 1)
    _, found = whole(tree_fc_against_peers)
    assert "--model tree-fc --batch 1 16 64 128 --threads 1" in " ".join(found["machine"]["command"])
    assert "'mode': 'reshape'" in found["machine"]["torch reshape"] and found["machine"]["threads"] == "1"
    assert set(found["tables"]["128"]["ratio"]) == {"torch gather", "torch reshape", "DyNet"}


def test_programs_that_are_not_there(trees, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["c", "--torch-python", "/nowhere/python", "--data", "/nowhere/trees"])
    with pytest.raises(SystemExit, match="/nowhere/trees: expected binary trees"):
        trees_against_peers.main()
    with pytest.raises(SystemExit, match="cannot start /nowhere/python"):
        programs.run_in_turn({"torch": ["/nowhere/python"]}, 1, 10)


def test_trees_are_read_and_their_products_counted(trees):
    found, words = sst.load(trees)
    first = found[0]
    assert words == 5 and [len(tree) for tree in found] == [5, 3, 1]
    assert first.word.tolist() == [0, 1, 2, -1, -1] and first.label.tolist() == [2, 2, 2, 4, 3]
    assert first.left.tolist() == [-1, -1, -1, 1, 0] and first.right.tolist() == [-1, -1, -1, 2, 3]
    assert first.level.tolist() == [0, 0, 0, 1, 2] and first.taken.tolist() == [2, 1, 1, 2, -1]
    # 6 leaves and 3 inner nodes; a multiplication is two operations, and there are three products
    leaf, inner = 300 * 450, 10 * 150**2
    assert trees_against_peers.flop_of(found, "nary") == 6 * (6 * leaf + 3 * inner) / 3
    assert trees_against_peers.flop_of(found, "sum") == 6 * (6 * leaf + 3 * inner / 2) / 3
    assert tree_fc_against_peers.flop() == 2 * 512 * 256 * (2 * 255 + 127)


def test_targets_of_dynet_hold_for_large_batches_and_two_threads():
    assert trees_against_peers.targets(64, 2) == {rates.BEST: 1.15, "DyNet": 2.0}
    assert trees_against_peers.targets(64, 1) == trees_against_peers.targets(16, 2) == {rates.BEST: 1.15}


def small_tree_fc():
    options = SimpleNamespace(hidden=6, leaves=8, batch=[2], threads=1)
    return options, tree_fc_model.parameters(options), tree_fc_model.trees(3, options)


def test_the_reference_of_tree_fc_against_differences():
    _, values, leaves = small_tree_fc()
    _, gradient = tree_fc_model.reference(leaves, values)
    random = np.random.default_rng(3)
    for name in ("W", "b"):
        along = random.standard_normal(values[name].shape)
        ends = [
            tree_fc_model.reference(leaves, values | {name: values[name].astype(np.float64) + step * along})[0]
            for step in (1e-6, -1e-6)
        ]
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx((gradient[name] * along).sum(), rel=1e-5)


@pytest.mark.parametrize(("loss", "scale", "refused"), [(1, 1, None), (1.01, 1, "loss"), (1, 1.01, "gradient of W")])
def test_a_peer_of_tree_fc_that_is_wrong_is_refused(loss, scale, refused):
    class Peer:
        def __init__(self, start, rate):
            self.start, self.rate = dict(start), rate

        def prepare(self, trees):
            return trees

        def step(self, trees):
            found, gradient = tree_fc_model.reference(trees, self.start)
            self.start |= {name: self.start[name] - self.rate * scale * g for name, g in gradient.items()}
            return found * loss

        def values(self):
            return {name: self.start[name] for name in ("W", "b")}

    options, *_ = small_tree_fc()
    if refused is None:
        tree_fc_model.validate(Peer, options)
    else:
        with pytest.raises(SystemExit, match=f"VALIDATION FAILED: {refused}"):
            tree_fc_model.validate(Peer, options)


@pytest.mark.parametrize("cell", ["nary", "sum"])
def test_a_peer_of_trees_that_does_not_learn_is_refused(trees, cell):
    found, words = sst.load(trees)

    class Peer:
        def __init__(self, start, rate):
            self.start = start

        def prepare(self, trees):
            return trees

        def step(self, trees):
            return tree_model.reference_loss(trees, self.start, cell)

        def values(self):
            return {"bo": self.start["bo"] - 1e-3}

    with pytest.raises(SystemExit, match="VALIDATION FAILED: gradient of bo"):
        tree_model.validate(Peer, found, words, SimpleNamespace(hidden=4, width=5, cell=cell))


def test_our_program_prints_what_the_comparison_reads(tmp_path):
    file = tmp_path / "trees.txt"
    file.write_text(TREES * 43, encoding="utf-8")
    small = ["--data", str(file), "--cell", "sum", "--width", "5", "--hidden", "4", "--repeats", "2"]
    outcome = run_process(rates.ours(sys.executable, 1, [1, 4], *small), timeout=60)
    assert outcome.code == 0, str(outcome)
    found = json.loads(outcome.output.splitlines()[-1])
    limit = {"max": 2.0, "version": "numpy 2"}
    runs = {rates.OURS: [found], "torch": [peer("torch 2", b1=10, b4=10)], rates.LIMIT: [limit]}
    summary = rates.summarise(runs, {1: 1e3, 4: 1e3}, lambda batch: {})
    for batch in (1, 4):
        row = summary["tables"][batch]["rows"][rates.OURS]
        assert 0 < row["min"] <= row["median"] <= row["max"]
    assert "load average at the end of our runs" in rates.as_text(summary)


class Store:
    def __init__(self, values):
        self.values, self.rows, self.name = values, len(values), "words"

    def pull(self, ids):
        return self.values[ids]


def give(parameter: Parameter, values):
    parameter.initialise(np.random.default_rng(0))
    parameter.data[...] = values
    parameter.begin_step()


@pytest.mark.parametrize("cell", ["nary", "sum"])
def test_our_tree_lstm_is_the_peers(trees, cell):
    options = SimpleNamespace(hidden=4, width=6, cell=cell)
    (peers, words), graphs = sst.load(trees), from_brackets(TREES.splitlines(), {})
    values = tree_model.parameters(words, options)
    model = TreeLSTM(words, 5, 6, 4, cell)
    model.words.store = Store(values["words"])
    gates, forget = (values["U"], values["bu"]), (values["Uf"], values["bf"])
    if cell == "nary":
        gates = [np.concatenate(both) for both in zip(gates, forget, strict=True)]
    else:
        give(model.inner.forget.weight, forget[0]), give(model.inner.forget.bias, forget[1])
    for layer, (weight, bias) in {
        model.leaf.gates: (values["Wx"], values["bx"]),
        model.inner.gates: gates,
        model.output: (values["O"], values["bo"]),
    }.items():
        give(layer.weight, weight), give(layer.bias, bias)
    loss = float(model.loss(SimpleNamespace(graphs=graphs, weight=graphs.vertices))) * graphs.vertices
    assert loss == pytest.approx(tree_model.reference_loss(peers, values, cell), rel=1e-5)


def test_our_tree_fc_is_the_peers():
    options, values, leaves = small_tree_fc()
    model, graphs = TreeFC(values["words"]), complete_trees(3, options.leaves)
    assert (graphs.data["word"].reshape(3, -1)[:, : options.leaves] == leaves).all()
    layer = model.layer
    give(layer.weight, values["W"].T), give(layer.bias, values["b"])
    loss = model.loss(SimpleNamespace(graphs=graphs, weight=3))
    loss.backward()
    expected, gradient = tree_fc_model.reference(leaves, values)
    assert 3 * float(loss) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(3 * layer.weight.grad.T, gradient["W"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(3 * layer.bias.grad, gradient["b"], rtol=1e-4, atol=1e-4)
