"""Job files: what to train and how, as TOML, read into frozen dataclasses.

The dataclasses are the reference of all keys: their types, ranges, defaults. jobs/lm.toml shows each with its meaning.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from hybridmpi.errors import UsageError
from hybridmpi.optim import Adagrad, Optimizer, by_name


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `low` up, below `below` where that is given."""

    low: float
    below: float = math.inf

    def __str__(self) -> str:
        return f"at least {self.low}" + (f" and below {self.below}" if self.below < math.inf else "")


Count = Annotated[int, Range(1)]
Amount = Annotated[float, Range(0)]
Mebibytes = Annotated[float, Range(0.001)]


@dataclass(frozen=True, slots=True)
class ModelSection:
    """[model]: the language model's sizes."""

    kind: Literal["lm"] = "lm"
    width: Count = 128
    hidden: Count = 256
    samples: Count = 1024
    dropout: Annotated[float, Range(0, 1)] = 0.0
    softmax: Literal["sampled", "full"] = "sampled"


@dataclass(frozen=True, slots=True)
class DataSection:
    """[data]: the text and how it is cut into batches; `streams` is the number over all ranks."""

    source: str = "stdlib"
    vocabulary: Annotated[int, Range(2)] = 50_000
    held_out: Annotated[float, Range(0, 1)] = 0.02
    streams: Count = 64
    steps: Count = 20
    cache: str = ""


@dataclass(frozen=True, slots=True)
class TrainingSection:
    """[training]: how long, from which seed, and what is done on the way."""

    steps: Annotated[int, Range(0)] = 2000
    seed: Annotated[int, Range(0)] = 1
    clip: Amount = 1.0
    evaluate: Annotated[Literal["quarters"] | int, Range(0)] = "quarters"
    nonfinite: Literal["stop", "skip"] = "stop"
    progress: Amount = 5.0


@dataclass(frozen=True, slots=True)
class WorldSection:
    """[world]: which ranks hold the tables, and how rows are dealt out to them."""

    servers: Annotated[Literal["per-node"] | int, Range(0)] = "per-node"
    partition: Literal["block", "cyclic"] = "cyclic"


@dataclass(frozen=True, slots=True)
class TopologySection:
    """[topology]: the hosts of each supernode as a host list; without any, Slurm is asked."""

    supernodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AllReduceSection:
    """[allreduce]: how dense gradients are summed over the ranks; sizes of buckets in MiB."""

    wire: Literal["float32", "bfloat16", "float16"] = "float32"
    algorithm: Literal[
        "auto", "shared", "mpi", "naive", "recursive_doubling", "halving_doubling", "ring", "two_level"
    ] = "auto"
    bucket_mb: Mebibytes = 4.0
    first_bucket_mb: Mebibytes = 1.0
    overlap: bool = True
    check: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointSection:
    """[checkpoint]: where to, how often, how many are kept."""

    directory: str = "runs/lm"
    every: Annotated[int, Range(0)] = 0
    keep: Count = 2


@dataclass(frozen=True, slots=True)
class MetricsSection:
    """[metrics]: the file that measured values go to, one JSON object a line."""

    path: str = "runs/lm/metrics.jsonl"


@dataclass(frozen=True, slots=True)
class Job:
    """One training job. `optimizer` is the rule itself: [optimizer] has its `kind` and the settings of that kind."""

    model: ModelSection = field(default_factory=ModelSection)
    data: DataSection = field(default_factory=DataSection)
    optimizer: Optimizer = field(default_factory=lambda: Adagrad(rate=0.05, initial=1e-5))
    training: TrainingSection = field(default_factory=TrainingSection)
    world: WorldSection = field(default_factory=WorldSection)
    topology: TopologySection = field(default_factory=TopologySection)
    allreduce: AllReduceSection = field(default_factory=AllReduceSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)


def read_job(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """Return the job of the TOML file at `path`, changed by `overrides`, each "section.key=value". Local.

    A value is read as TOML; what is not TOML is a string, so that `data.source=text.txt` needs no quotes. Raises
    UsageError, which names the file (or --set), the key and what was expected, for a file that cannot be read, an
    unknown section or key, a value of another type or outside its range.
    """
    values: dict[tuple[str, str], tuple[Any, str]] = {}
    sections = get_type_hints(Job)
    for section, content in _read_toml(path).items():
        if section not in sections:
            raise UsageError(f"{path}: unknown section [{section}]; {_suggest(section, sections)}")
        if not isinstance(content, dict):
            raise UsageError(f"{path}: {section} is {_show(content)}; expected a section [{section}]")
        values |= {(section, key): (value, f"{path}: [{section}] {key}") for key, value in content.items()}
    for override in overrides:
        section, key, value = _parse_override(override)
        if section not in sections:
            raise UsageError(f"--set {override}: unknown section '{section}'; {_suggest(section, sections)}")
        values[section, key] = (value, f"--set {section}.{key}")

    chosen = {
        section: {key: value for (owner, key), value in values.items() if owner == section} for section in sections
    }
    made = {name: _section(made_of, chosen[name]) for name, made_of in sections.items() if made_of is not Optimizer}
    return Job(optimizer=_optimizer(path, chosen["optimizer"]), **made)


def _read_toml(path: str | Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise UsageError(f"job file '{path}' cannot be read: {error.strerror}; expected a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"job file '{path}' is not TOML: {error}") from error


def _parse_override(text: str) -> tuple[str, str, Any]:
    """Return (section, key, value) of "section.key=value"."""
    name, equals, value = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and section and key) or "." in key:
        raise UsageError(f"--set {text}: expected section.key=value, such as training.steps=100")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    return section, key, parsed["value"] if parsed.keys() == {"value"} else value.strip()


def _section(made_of: type, values: Mapping[str, tuple[Any, str]]) -> Any:
    """Return the dataclass `made_of` a section, every value checked against the type and range of its field."""
    hints = get_type_hints(made_of, include_extras=True)
    for key, (_, place) in values.items():
        if key not in hints:
            raise UsageError(f"{place}: unknown key; {_suggest(key, hints)}")
    return made_of(**{key: _checked(value, hints[key], place) for key, (value, place) in values.items()})


def _optimizer(path: str | Path, values: Mapping[str, tuple[Any, str]]) -> Optimizer:
    """Return the optimiser of [optimizer], which checks its own settings; without any, the default one."""
    if not values:
        return Job().optimizer
    kind, place = values.get("kind", (Adagrad.name, ""))
    # Another kind by --set: what the file says of its own kind, other than the rate, does not concern it.
    replaced = place.startswith("--set")
    settings = {
        key: value
        for key, (value, place) in values.items()
        if key != "kind" and (key == "rate" or not replaced or place.startswith("--set"))
    }
    if kind == Adagrad.name:
        default = Job().optimizer
        settings = {"rate": default.rate, "initial": default.initial} | settings
    try:
        return by_name(kind, **settings)
    except UsageError as error:
        places = [place for _, place in values.values() if place.startswith("--set")]
        raise UsageError(f"{path}{' with ' if places else ''}{', '.join(places)}: [optimizer] {error}") from error


def _checked(value: Any, hint: Any, place: str) -> Any:
    """Return `value` as the field of type `hint` holds it; raise UsageError that names `place` if it cannot."""
    limits = next((extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Range)), None)
    base = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    choices = get_args(base) if get_origin(base) in (Union, UnionType) else (base,)
    for choice in choices:
        if get_origin(choice) is Literal:
            if isinstance(value, str) and value in get_args(choice):
                return value
        elif choice in (int, float):
            number = isinstance(value, int) and not isinstance(value, bool)
            if (number or (choice is float and isinstance(value, float))) and limits.low <= value < limits.below:
                return choice(value)
        elif get_origin(choice) is tuple:
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                return tuple(value)
        elif isinstance(value, choice):
            return value
    raise UsageError(f"{place} = {_show(value)}; expected {' or '.join(_describe(c, limits) for c in choices)}")


def _describe(choice: Any, limits: Range | None) -> str:
    """Return what a value of type `choice` is, in words."""
    if get_origin(choice) is Literal:
        return " or ".join(f'"{name}"' for name in get_args(choice))
    if get_origin(choice) is tuple:
        return 'a list of strings in quotes, such as ["one", "two"]'
    if choice in (int, float):
        return f"a {'whole ' * (choice is int)}number, {limits}"
    return {bool: "true or false", str: "a string in quotes"}[choice]


def _show(value: Any) -> str:
    """Return `value` and its kind, as TOML names it."""
    kinds = {bool: "a truth value", int: "a whole number", float: "a fraction", str: "a string", list: "a list"}
    shown = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return f"{shown} ({kinds.get(type(value), type(value).__name__)})"


def _suggest(name: str, known: Iterable[str]) -> str:
    """Return the nearest known name as a question, the section that has `name`, or all that is known."""
    known = list(known)
    if close := get_close_matches(name, known, n=1, cutoff=0.6):
        return f"did you mean '{close[0]}'?"
    owners = [section for section, kind in get_type_hints(Job).items() if name in (f.name for f in fields(kind))]
    return f"it belongs to [{owners[0]}]" if owners else f"expected one of {', '.join(known)}"
