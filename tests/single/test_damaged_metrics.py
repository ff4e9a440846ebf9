"""Metrics files that were damaged in every way: `watch --once` and `plot` show what there is, or say what is wrong."""

import json
import math
import os
import random
import warnings

import pytest
from watched_runs import Run

from hybridmpi.cli.main import main
from hybridmpi.watching.reading import MetricsReader

# What may stand where something else is expected.
ODD = (
    None, True, False, 0, -1, 1, 2**53, 2**63, -(2**70), 10**400, 0.0, -0.5, 1e-300, 1e308, -1e308, math.nan, math.inf,
    -math.inf, "", "x", "9", "\0", "\ud800", "\x1b[2J", "ä" * 500, [], [1], [[[]]], {}, {"x": 1}, {"": None},
    {"steps": "many"}, {"a": {"b": [math.nan]}},
)  # fmt: skip
KINDS = ("run", "step", "evaluation", "note", "checkpoint", "staleness", "end", "", "Step", 7, None)


@pytest.fixture(scope="module")
def lines(tmp_path_factory) -> list[bytes]:
    """The lines of a run with all kinds, started twice."""
    path = tmp_path_factory.mktemp("whole") / "metrics.jsonl"
    run = Run(path, 60, training={"evaluate": 20})
    run.steps(25, rows={"wanted": 100, "used": 50}, notes=("moved",))
    run.evaluate(perplexity=3.0, auc=0.5)
    run.write("checkpoint", step=25, seconds=0.1, behind=False)
    run.steps(5, skipped=True, loss=math.nan)
    run.close()
    run = Run(path, 60, append=True, first=25, start=2000.0)
    run.steps(30)
    run.write("staleness", step=55, pushes={"0": 9})
    run.write("note", step=55, text="parts moved")
    run.end(stopped=True)
    return path.read_bytes().splitlines(keepends=True)


def mutated(random: random.Random, lines: list[bytes]) -> bytes:
    """Return a file of `lines` with a few things changed."""
    lines = list(lines)
    for _ in range(random.choice((1, 1, 2, 5, 40))):
        where = random.randrange(len(lines) or 1)
        lines = lines or [b"\n"]
        random.choice(CHANGES)(random, lines, where)
    return b"".join(lines)


def change_value(random, lines, where):
    """Put something odd in the place of a value, however deep, or of a name."""
    try:
        said = json.loads(lines[where])
    except (ValueError, RecursionError):
        return
    place = said
    while isinstance(place, dict) and place:
        name = random.choice(list(place))
        if isinstance(place[name], dict) and place[name] and random.random() < 0.7:
            place = place[name]
            continue
        how = random.random()
        if how < 0.15:
            del place[name]
        elif how < 0.3:
            place[random.choice(("", "x", "step", "loss", "notes", "words_per_s", "_per_s", "\ud800"))] = place.pop(
                name
            )
        else:
            place[name] = random.choice(KINDS if name == "kind" else ODD)
        break
    lines[where] = json.dumps(said).encode() + b"\n"


def change_all(random, lines, where):
    """The same odd thing in all lines."""
    name, value = random.choice(("step", "time", "loss", "seconds", "examples", "phases", "bytes")), random.choice(ODD)
    for number, line in enumerate(lines):
        try:
            lines[number] = json.dumps({**json.loads(line), name: value}).encode() + b"\n"
        except (ValueError, TypeError, RecursionError):
            continue


def change_bytes(random, lines, where):
    line = bytearray(lines[where] or b"\n")
    for _ in range(random.choice((1, 3, 20))):
        line[random.randrange(len(line) or 1)] = random.randrange(256)
    lines[where] = bytes(line)


def insert(random, lines, where):
    more = [
        random.randbytes(50),
        b"\0" * 4096,
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"9" * 5000,
        b"null",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b"{}",
        b"\r",
    ]
    lines.insert(where, random.choice(more) + random.choice((b"\n", b"")))


def cut(random, lines, where):
    lines[where] = lines[where][: random.randrange(len(lines[where]) or 1)] or b"\n"


def repeat(random, lines, where):
    lines[where:where] = [lines[random.randrange(len(lines))]] * random.choice((1, 3))


def shuffle(random, lines, where):
    random.shuffle(lines)


def drop(random, lines, where):
    del lines[where:][: random.choice((1, 10))]


CHANGES = (change_value,) * 6 + (change_all, change_bytes, insert, cut, repeat, shuffle, drop)


def shown(arguments: list[str], capsys, content: bytes) -> None:
    """Run a command; it ends with 0 or, with one message, 2, and says nothing but that."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            code = main(arguments)
        except Exception as error:
            raise AssertionError(content[:5000]) from error
    said = capsys.readouterr()
    assert (code, said.err) == (0, "") or (code == 2 and said.err.count("\n") == 1), (said.err, content[:5000])


@pytest.mark.parametrize("seed", range(11))
def test_a_view_of_anything(tmp_path, capsys, lines, seed):
    path = tmp_path / "metrics.jsonl"
    for number in range(100):
        content = mutated(random.Random(1000 * seed + number), lines)
        path.write_bytes(content)
        shown(["watch", "--once", str(path)], capsys, content)
        if number % 10:
            continue
        reader = MetricsReader(path)
        reader.poll()
        with path.open("ab") as file:  # and it goes on
            file.write(b"".join(lines[:3]))
        reader.poll()


@pytest.mark.parametrize("seed", range(6))
def test_a_picture_of_anything(tmp_path, capsys, lines, seed):
    paths = [tmp_path / f"{name}.jsonl" for name in "ab"]
    contents = [mutated(random.Random(f"{seed}{path.name}"), lines) for path in paths]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    output = ["-o", str(tmp_path / "runs.svg"), "--x", ("step", "time")[seed % 2]]
    runs = [str(path) for path in paths][: 1 + seed % 3 // 2]
    shown(["plot", *runs, *output, *["--log"][: seed % 4 // 3]], capsys, b"\n\n".join(contents))


@pytest.mark.parametrize(
    "place",
    [
        "x" * 400,
        "a\0b",
        "{folder}",
        "{folder}/pipe",
        "{folder}/pipe.jsonl",
        "{folder}/folder.jsonl",
        "{folder}/pipe/x",
        "{folder}/file/x",
        "\udc80",
        "",
    ],
)
@pytest.mark.parametrize("command", ["watch --once", "plot -o {folder}/x.png"])
def test_places_that_are_no_metrics_file(tmp_path, capsys, command, place):
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "file").write_text("")
    words = [word.format(folder=tmp_path) for word in (*command.split(), place)]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("hybridmpi: error: ") and said.count("\n") == 1
