"""`hybridmpi plan`: text of 100 columns, JSON, one parameter, replaced sparsity, wrong arguments."""

import json

import pytest

from hybridmpi.cli import main as cli
from hybridmpi.cli.plan import places


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    words = " ".join(f"w{(i * i) % 61}" for i in range(3000))
    (folder / "text.txt").write_text("\n".join(words[i : i + 80] for i in range(0, len(words), 80)))
    settings = "[model]\nwidth = 16\nhidden = 24\nsamples = 20\n\n[data]\nstreams = 8\nsteps = 5\nvocabulary = 500\n"
    path = folder / "job.toml"
    path.write_text(f'{settings}source = "{folder / "text.txt"}"\ncache = "{folder}"\n')
    return str(path)


def plan(capsys, *arguments):
    assert cli.main(["plan", *arguments]) == 0
    return capsys.readouterr().out


def plan_json(capsys, *arguments):
    return json.loads(plan(capsys, *arguments, "--json"))


def test_an_all_reduce_without_a_formula_is_said_to_be_replaced(capsys, job):
    assert cli.main(["plan", job, "--nodes", "4", "--set", "allreduce.algorithm=mpi"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "all-reduce 'mpi' is not predicted here: sums take the time of the fastest of recursive_doubling, " in said
    assert cli.main(["plan", job, "--nodes", "4", "--set", "allreduce.algorithm=ring"]) == 0
    assert "is not predicted" not in capsys.readouterr().out


def test_the_text_fits_a_terminal_and_names_everything(capsys, job):
    text = plan(capsys, job, "--nodes", "8")
    assert max(map(len, text.splitlines())) <= 100
    assert text.startswith("8 nodes, 16 compute ranks, 8 servers, links of 115.0 MB/s each way; 40 words a step")
    for word in ("embedding", "output", "bias", "lstm.weight_x", "hybrid", "ps", "allreduce", "allgather", "words/s"):
        assert word in text


def test_json_says_the_same_and_hybrid_is_first(capsys, job):
    found = plan_json(capsys, job, "--nodes", "2", "--ranks", "4")
    assert (found["machine"]["compute"], found["machine"]["servers"]) == ([1, 1], [1, 1])
    assert found["unit"] == "words" and found["units_per_step"] == 40
    steps = {mode: entry["seconds"]["step"] for mode, entry in found["modes"].items()}
    assert steps["hybrid"] == min(steps.values()) and set(steps) == {"hybrid", "ps", "allreduce", "allgather"}
    tables = {p["name"]: p for p in found["parameters"] if p["kind"] == "sparse"}
    assert set(tables) == {"embedding", "output", "bias"}
    for table in tables.values():
        assert 0 < table["alpha"]["rank"] <= table["alpha"]["node"] <= table["alpha"]["all"] <= 1
        assert set(table["step_bytes"]) == set(table["added_seconds"]) == {"ps", "allreduce", "allgather"}
        assert table["balance"]["access"] >= 1 and table["reason"]


def test_links_and_alphas_can_be_given(capsys, job):
    slow = plan_json(capsys, job, "--nodes", "2", "--link-gbps", "0.1")
    fast = plan_json(capsys, job, "--nodes", "2", "--link-gbps", "10")
    assert slow["modes"]["ps"]["seconds"]["step"] > fast["modes"]["ps"]["seconds"]["step"]
    given = plan_json(capsys, job, "--nodes", "2", "--alpha", "embedding=0.9", "--alpha", "output=1")
    tables = {p["name"]: p["alpha"]["rank"] for p in given["parameters"] if p["kind"] == "sparse"}
    assert tables["embedding"] == pytest.approx(0.9, rel=1e-2) and tables["output"] == 1
    halved = plan_json(capsys, job, "--nodes", "2", "--row-wire", "bfloat16")["modes"]["ps"]["bytes"]["counted"]
    assert halved["pull_rows"] < plan_json(capsys, job, "--nodes", "2")["modes"]["ps"]["bytes"]["counted"]["pull_rows"]


def test_one_parameter_is_explained(capsys, job):
    text = plan(capsys, job, "--nodes", "2", "--explain", "output")
    assert max(map(len, text.splitlines())) <= 100
    for word in ("rows touched in a step", "(chosen)", "push_rows", "busiest server", "node out"):
        assert word in text
    dense = plan(capsys, job, "--nodes", "2", "--explain", "lstm.weight_x")
    assert "allgather" not in dense and "dense: summed by all-reduce" in dense
    assert plan_json(capsys, job, "--explain", "bias")["name"] == "bias"


def test_every_kind_of_job_is_planned(capsys, tmp_path):
    """Clicks that are generated, and a parallel text of the user's: by the same command, the same way."""
    kinds = "ctr", "nmt", "trees", "graphs", "top-down"
    clicks, pairs, trees, graphs, growing = (tmp_path / f"{kind}.toml" for kind in kinds)
    clicks.write_text('[model]\nkind = "ctr"\nbottom = [8]\ntop = [8]\n\n[data]\ndivide = 100000\nbatch = 64\n')
    for side in (1, 2):
        lines = (" ".join(f"w{(i * j * side) % 31}" for j in range(1 + i % 6)) for i in range(400))
        (tmp_path / f"text.{side}").write_text("\n".join(lines) + "\n")
    settings = f'source = "{tmp_path}/text.1"\ntarget = "{tmp_path}/text.2"\ncache = "{tmp_path}"\nsentences = 10\n'
    pairs.write_text(f'[model]\nkind = "nmt"\nwidth = 8\nhidden = 6\nsamples = 5\n\n[data]\n{settings}')
    (tmp_path / "bank.txt").write_text("(3 (2 good) (3 (2 and) (4 warm)))\n(1 (0 bad) (2 day))\n" * 30)
    bank = f'source = "{tmp_path}/bank.txt"\ndev = "{tmp_path}/bank.txt"\ncache = "{tmp_path}"\ngraphs = 12\n'
    trees.write_text(f'[model]\nkind = "trees"\nwidth = 8\nhidden = 6\n\n[data]\n{bank}')
    growing.write_text(f'[model]\nkind = "top-down"\nwidth = 8\nhidden = 6\n\n[data]\n{bank}')
    few = f'cache = "{tmp_path}"\nmost = 60\nlongest = 40\nnames = 9\ngraphs = 12\nvocabulary = 90\n'
    graphs.write_text(f'[model]\nkind = "graphs"\nwidth = 8\nhidden = 6\n\n[data]\n{few}')
    expected = {
        clicks: ("examples", 64, {f"tables.c{number:02}" for number in range(1, 27)}),
        pairs: ("words", pytest.approx(45, rel=0.2), {"source", "target", "output", "bias"}),
        trees: ("labels", pytest.approx(48, rel=0.2), {"words"}),
        graphs: ("labels", pytest.approx(13, abs=3), {"words", "kinds"}),
        growing: ("vertices", pytest.approx(48, rel=0.2), {"kinds"}),
    }
    for job, (unit, units, names) in expected.items():
        found = plan_json(capsys, str(job), "--nodes", "2", "--ranks", "6")
        assert (found["unit"], found["units_per_step"]) == (unit, units)
        assert {p["name"] for p in found["parameters"] if p["kind"] == "sparse"} == names
        assert all(0 < entry["seconds"]["compute"] < entry["seconds"]["step"] for entry in found["modes"].values())
        text = plan(
            capsys, str(job), "--nodes", "2", "--explain", min({"output", "words", "tables.c03", "kinds"} & names)
        )
        assert "rows touched in a step" in text and "(chosen)" in text
    # A rank without examples touches nothing: 3 of 6 ranks.
    few = plan_json(
        capsys, str(clicks), "--ranks", "6", "--servers", "0", "--set", "data.batch=3", "--explain", "tables.c01"
    )
    assert few["touched"]["rank"] <= 0.5 * 2 and few["touched"]["all"] > few["touched"]["rank"]
    unknown = tmp_path / "unknown.toml"
    unknown.write_text('[model]\nkind = "lmm"\n')
    assert cli.main(["plan", str(unknown)]) == 2
    assert (
        'kind = "lmm" (a string); expected "lm" or "ctr" or "nmt" or "trees" or "graphs" or "top-down"'
        in capsys.readouterr().err
    )


def test_ranks_of_a_node_do_together_what_they_would_in_a_run(capsys, job):
    def transport(*arguments):
        found = plan_json(capsys, job, *arguments)["transport"]
        return found["local"], found["together"]

    assert transport("--nodes", "2") == (True, True)
    assert transport("--nodes", "2", "--ranks", "4") == (False, False)  # one compute rank on each
    assert transport("--nodes", "1", "--ranks", "4") == (False, False)
    assert transport("--ranks", "4", "--set", "sparse.aggregate=always") == (True, False)
    assert transport("--nodes", "2", "--set", "sparse.aggregate=never") == (False, False)
    assert transport("--nodes", "2", "--set", "sparse.prefetch=true") == (True, False)
    assert transport("--nodes", "2", "--set", "training.staleness=2", "--set", "sparse.mode=ps") == (False, False)
    text = plan(capsys, job, "--nodes", "2")
    assert "\nranks of a node sum the rows that they push and pull together what they want of other nodes\n" in text


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--nodes", "0"], "--nodes 0: expected at least 1"),
        (["--nodes", "4", "--ranks", "3"], "--ranks 3: expected at least one for each of 4 nodes"),
        (["--servers", "some"], "--servers some: expected 'per-node' or a number"),
        (["--ranks", "2", "--servers", "2"], "--ranks 2: 2 servers were asked for"),
        (["--link-gbps", "0"], "--link-gbps 0.0: expected a number above 0"),
        (["--link-gbps", "inf"], "--link-gbps inf: expected a number above 0, and below infinity"),
        (["--link-gbps", "nan"], "--link-gbps nan: expected a number above 0"),
        (["--nodes", "1000000"], "a plan for 2,000,000 compute ranks: expected 16,384 at most"),
        (["--cores", "-1"], "cores = -1.0: expected a number above 0"),
        (["--alpha", "embeding=0.1"], "no table 'embeding'; the model has bias, embedding, output"),
        (["--alpha", "embedding=2"], "expected TABLE=X with X from 0 to 1, such as embedding=0.2"),
        (["--alpha", "embedding"], "expected TABLE=X"),
        (["--explain", "outptu"], "no parameter 'outptu': did you mean 'output'?"),
        (["--steps", "5"], "--steps: expected several ranks, such as hybridmpi launch -n 3 -- plan"),
        (["--limit", "5"], "--limit: expected several ranks"),
        (["--set", "data.stream=3"], "unknown key; did you mean 'streams'?"),
    ],
)
def test_wrong_arguments_are_named(capsys, job, arguments, text):
    assert cli.main(["plan", job, *arguments]) == 2
    assert text in capsys.readouterr().err


def test_ranks_are_placed_as_the_world_places_them():
    assert places(2, None, None, "per-node") == ((2, 2), (1, 1))
    assert places(2, 5, "0", "per-node") == ((3, 2), (0, 0))
    assert places(2, 5, "1", 0) == ((2, 2), (1, 0))
    assert places(1, 1, None, "per-node") == ((1,), (0,))


def test_several_ranks_are_a_machine_of_their_own(capsys, job, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    assert cli.main(["plan", job, "--link-gbps", "10"]) == 2
    assert "--link-gbps: on several ranks the machine is the one that they are on" in capsys.readouterr().err
    assert cli.main(["plan", job, "--steps", "0"]) == 2
    assert "--steps 0: expected at least 1" in capsys.readouterr().err
