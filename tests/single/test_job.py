"""Job files: defaults, types, ranges, overrides and the text of every refusal."""

import json
import tomllib
from dataclasses import asdict, fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from hybridmpi.collectives import ALGORITHMS, WIRES
from hybridmpi.errors import UsageError
from hybridmpi.optim import SGD, Adagrad, Adam
from hybridmpi.training.dense import DenseOptions
from hybridmpi.training.job import AllReduceSection, Job, default_job, read_job
from hybridmpi.training.kinds import KINDS
from hybridmpi.training.options import dense_options
from hybridmpi.training.run import describe_job

JOBS = Path(__file__).parents[2] / "jobs"
EXAMPLE = JOBS / "lm.toml"


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "job.toml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("kind", KINDS)
def test_example_shows_every_key_with_its_default(kind):
    example, default = JOBS / f"{kind}.toml", default_job(kind)
    assert read_job(example) == default and default.model.kind == kind
    shown = tomllib.loads(example.read_text())
    for section in fields(Job):
        if section.name == "modes":
            assert shown["modes"] == default.modes == {}
        elif section.name != "optimizer":
            lists = {key: tuple(value) for key, value in shown[section.name].items() if isinstance(value, list)}
            assert shown[section.name] | lists == asdict(getattr(default, section.name))


def test_every_kind_has_a_directory_of_its_own():
    assert len({default_job(kind).checkpoint.directory for kind in KINDS}) == len(KINDS)


def test_the_kind_decides_what_model_and_data_hold(write):
    job = read_job(write(""), ["model.kind=ctr", "model.bottom=[5]"])
    assert (job.model.bottom, job.data) == ((5,), default_job("ctr").data)
    with pytest.raises(UsageError, match=r"\[model\] hidden: unknown key; expected one of kind, width"):
        read_job(write('[model]\nkind = "ctr"\nhidden = 3'))
    with pytest.raises(UsageError, match=r"\[data\] streams: unknown key"):
        read_job(write("[data]\nstreams = 3"), ["model.kind=ctr"])


def test_metrics_are_in_the_directory_of_the_run_unless_they_are_elsewhere(write):
    assert read_job(write("")).metrics_path == "runs/lm/metrics.jsonl"
    sets = {"checkpoint.directory=a/b": "a/b/metrics.jsonl", "metrics.path=/a/b": "/a/b", "metrics.path=": ""}
    for override, path in sets.items():
        assert read_job(write(""), [override]).metrics_path == path


def test_empty_file_is_the_defaults(write):
    assert read_job(write("")) == default_job("lm")


def test_values_are_read(write):
    world = '[world]\nservers = 2\n[sparse]\npartition = "block"\n[modes]\n"output*" = "allreduce"\n'
    job = read_job(write(f"[training]\nsteps = 7\nclip = 3\nevaluate = 50\n{world}"), ["modes.lstm.*=ps"])
    assert job.modes == {"output*": "allreduce", "lstm.*": "ps"} and job.servers == 2
    assert read_job(write(""), ["sparse.mode=allgather"]).servers == 0
    with pytest.raises(UsageError, match=r'\[modes\] embedding = "pc".*expected "hybrid" or "ps"'):
        read_job(write('[modes]\nembedding = "pc"\n'))
    assert (job.training.steps, job.training.clip, job.training.evaluate) == (7, 3.0, 50)
    assert isinstance(job.training.clip, float)
    assert (job.world.servers, job.sparse.partition) == (2, "block")
    assert read_job(path := write(""), ["world.servers=[0, 1]"]).servers == (0, 1)
    with pytest.raises(UsageError, match='expected "per-node" or a whole number, at least 0 or a list'):
        read_job(path, ["world.servers=[0.5]"])
    with pytest.raises(AttributeError):
        job.training.steps = 8


def test_lists_of_strings_are_read(write):
    path = write('[topology]\nsupernodes = ["node[01-16]", "node[17-32],gpu1"]\n')
    assert read_job(path).topology.supernodes == ("node[01-16]", "node[17-32],gpu1")
    assert read_job(path, ["topology.supernodes=[]"]).topology.supernodes == ()
    assert read_job(path, ["topology.supernodes=['a','b']"]).topology.supernodes == ("a", "b")


def test_the_allreduce_of_a_job(write):
    text = '[allreduce]\nwire = "bfloat16"\nalgorithm = "ring"\nbucket_mb = 2\nfirst_bucket_mb = 0.25\n'
    text += "overlap = false\ncheck = true\n"
    path = write(text + '[topology]\nsupernodes = ["a", "b"]\n')
    expected = DenseOptions("bfloat16", "ring", 2 << 20, 1 << 18, False, ("a", "b"), check=True)
    assert dense_options(read_job(path)) == expected
    assert dense_options(read_job(path, ["allreduce.overlap=true", "allreduce.algorithm=auto"])).overlap is True


def test_the_defaults_of_a_job_are_those_of_a_trainer():
    assert dense_options(default_job("lm")) == DenseOptions()


def test_a_job_is_described_by_json_values(write):
    described = describe_job(read_job(write('[topology]\nsupernodes = ["a", "b"]\n')))
    assert described["topology"] == {"supernodes": ["a", "b"]} and described["allreduce"]["bucket_mb"] == 4.0
    assert json.loads(json.dumps(described)) == described


def test_every_wire_and_algorithm_can_be_named():
    hints = get_type_hints(AllReduceSection)
    assert set(get_args(hints["wire"])) == set(WIRES)
    assert set(get_args(hints["algorithm"])) == {"auto", "shared", *ALGORITHMS}


def test_optimizer_is_the_rule(write):
    assert read_job(write("")).optimizer == Adagrad(rate=0.05, initial=1e-5)
    assert read_job(write("[optimizer]\nrate = 0.5")).optimizer == Adagrad(rate=0.5, initial=1e-5)
    assert read_job(write("[optimizer]\ninitial = 0.5")).optimizer == Adagrad(rate=0.05, initial=0.5)
    assert read_job(write('[optimizer]\nkind = "adam"\nrate = 0.1\nbeta1 = 0.8')).optimizer == Adam(rate=0.1, beta1=0.8)
    assert read_job(EXAMPLE, ["optimizer.kind=sgd"]).optimizer == SGD(rate=0.05)


def test_overrides_win_in_order(write):
    path = write("[training]\nsteps = 7\n")
    overrides = ["training.steps=8", "training.steps = 9", "data.source=texts/a b.txt", 'model.softmax="full"']
    job = read_job(path, [*overrides, "world.servers=per-node", "data.cache=", "training.progress=1"])
    assert (job.training.steps, job.data.source, job.model.softmax) == (9, "texts/a b.txt", "full")
    assert (job.world.servers, job.data.cache, job.training.progress) == ("per-node", "", 1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[trainin]\n", r"job\.toml: unknown section \[trainin\]; did you mean 'training'\?"),
        ("[zzz]\n", r"unknown section \[zzz\]; expected one of model, data, optimizer, training"),
        ("training = 3\n", r"training is 3 \(a whole number\); expected a section \[training\]"),
        ("[training]\nstep = 3\n", r"job\.toml: \[training\] step: unknown key; did you mean 'steps'\?"),
        ("[training]\nvocabulary = 3\n", r"\[training\] vocabulary: unknown key; it belongs to \[data\]"),
        ("[training]\nzzz = 3\n", r"unknown key; expected one of steps, seed, clip"),
        ("[training]\nsteps = 3.0\n", r"\[training\] steps = 3.0 \(a fraction\); expected a whole number, at least 0"),
        ("[training]\nsteps = true\n", r"steps = true \(a truth value\); expected a whole number"),
        ("[training]\nsteps = -1\n", r"steps = -1 .*at least 0"),
        ("[model]\ndropout = 1.0\n", r"dropout = 1.0 .*expected a number, at least 0 and below 1"),
        ("[training]\nclip = nan\n", r"clip = nan .*expected a number"),
        ("[training]\nclip = inf\n", r"clip = inf .*expected a number"),
        ("[data]\nsource = 3\n", r"source = 3 \(a whole number\); expected a string in quotes"),
        ("[data]\nstreams = [1]\n", r"streams = \[1\] \(a list\)"),
        ('[training]\nnonfinite = "ignore"\n', r'nonfinite = "ignore" \(a string\); expected "stop" or "skip"'),
        ('[world]\nservers = "two"\n', r'servers = "two" .*expected "per-node" or a whole number, at least 0'),
        ("[world]\nservers = -2\n", r"servers = -2 "),
        (
            '[topology]\nsupernodes = "a"\n',
            r'supernodes = "a" \(a string\); expected a list of strings in quotes, such as',
        ),
        ('[topology]\nsupernodes = ["a", 1]\n', r"supernodes = \['a', 1\] \(a list\); expected a list of strings"),
        ("[topology]\nsupernode = []\n", r"unknown key; did you mean 'supernodes'\?"),
        ("[allreduce]\noverlap = 1\n", r"overlap = 1 \(a whole number\); expected true or false"),
        ('[allreduce]\nwire = "int8"\n', r'wire = "int8" .*expected "float32" or "bfloat16" or "float16"'),
        ('[allreduce]\nalgorithm = "butterfly"\n', r'algorithm = "butterfly" .*expected "auto" or "shared" or "mpi"'),
        ("[allreduce]\nbucket_mb = 0\n", r"bucket_mb = 0 .*expected a number, at least 0.001"),
        ("[allreduce]\nbucket_mib = 4\n", r"unknown key; did you mean 'bucket_mb'\?"),
        ("[training]\noverlap = true\n", r"unknown key; it belongs to \[allreduce\]"),
        ('[model]\nkind = "gru"\n', r'kind = "gru" \(a string\); expected "lm" or "ctr"'),
        (
            '[model]\nkind = "ctr"\ntop = [8, 0]\n',
            r"top = \[8, 0\] \(a list\); expected a list of whole numbers, each at",
        ),
        ('[model]\nkind = "ctr"\ntop = 8\n', r"top = 8 \(a whole number\); expected a list of whole numbers"),
        ('[optimizer]\nkind = "adagrat"\n', r"job\.toml: \[optimizer\] .*'adagrat'.*adagrad"),
        ("[optimizer]\nmomentum = 0.9\n", r"\[optimizer\] .*momentum"),
        ("[optimizer]\nrate = -1\n", r"\[optimizer\] .*rate"),
        ("[training\n", r"job\.toml' is not TOML: .*line 1"),
        ("[training]\nsteps = 1\nsteps = 2\n", r"is not TOML"),
    ],
)
def test_refusals_name_file_key_and_what_is_known(write, text, message):
    with pytest.raises(UsageError, match=message):
        read_job(write(text))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.steps", r"--set training\.steps: expected section\.key=value"),
        ("steps=3", r"--set steps=3: expected section\.key=value"),
        ("a.b.c=3", r"expected section\.key=value"),
        ("trainin.steps=3", r"unknown section 'trainin'; did you mean 'training'"),
        ("training.step=3", r"--set training\.step: unknown key; did you mean 'steps'"),
        ("training.steps=ten", r'--set training\.steps = "ten" \(a string\); expected a whole number'),
        ("allreduce.overlap=False", r'--set allreduce\.overlap = "False" \(a string\); expected true or false'),
        ("topology.supernodes=node[1-2]", r'supernodes = "node\[1-2\]" \(a string\); expected a list of strings'),
        ("training.steps=3\nseed=4", r"--set training\.steps = "),
        ("optimizer.beta1=3", r"with --set optimizer\.beta1: \[optimizer\] .*beta1"),
    ],
)
def test_refused_overrides(write, override, message):
    with pytest.raises(UsageError, match=message):
        read_job(write(""), [override])


def test_unreadable_files(tmp_path):
    with pytest.raises(UsageError, match=r"missing\.toml' cannot be read: No such file"):
        read_job(tmp_path / "missing.toml")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_job(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'[data]\nsource = "caf\xe9"\n')
    with pytest.raises(UsageError, match="is not TOML: .*utf-8"):
        read_job(tmp_path / "latin.toml")
