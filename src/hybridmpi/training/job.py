"""Job files: what to train and how, as TOML, read into frozen dataclasses.

The dataclasses are the reference of all keys: types, ranges, defaults, and as a text beside the type what each means.
The files in jobs/ are made of them (reference.py). [model] and [data] are those of the job's kind (kinds.py), which has
defaults of its own for all the rest.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from hybridmpi.errors import UsageError
from hybridmpi.field_types import (
    Amount,
    Count,
    FilePath,
    Mebibytes,
    Natural,
    OptionalPath,
    Range,
    Seed,
    Wire,
    checked,
    hints_of,
    printable,
    show,
)
from hybridmpi.optim import OPTIMIZERS, Adagrad, Optimizer, by_name
from hybridmpi.paths import expanded
from hybridmpi.planning.modes import Mode
from hybridmpi.roles import Servers
from hybridmpi.sparse.cache import Policy
from hybridmpi.sparse.node_sum import Aggregate
from hybridmpi.sparse.partition import Kind as Partitioning
from hybridmpi.sparse.partition import Parts
from hybridmpi.training.dense import Algorithm
from hybridmpi.training.endings import Nonfinite
from hybridmpi.training.kinds import KINDS, task_of
from hybridmpi.wording import nearest

MOST_BYTES = 1 << 20
"""A job file is text that somebody wrote: with all keys and their meanings it has some 8 kB."""


@dataclass(frozen=True, slots=True)
class TrainingSection:
    """[training]: how long, from which seed, and what is done on the way."""

    steps: Annotated[Natural, "steps in all"] = 2000
    seed: Annotated[Seed, "of the initial values and of everything drawn at random"] = 1
    clip: Annotated[Amount, "largest norm of the gradient, dense and sparse; 0: not clipped"] = 1.0
    evaluate: Annotated[
        Literal["quarters"] | int,
        Range(0),
        'on held-out data: after each of four "quarters" of the steps, or every so many; 0: never',
    ] = "quarters"
    nonfinite: Annotated[
        Nonfinite,
        'when a loss or a gradient is not finite: "stop", or "skip" that step on all ranks',
    ] = "stop"
    staleness: Annotated[
        Literal["unbounded"] | int,
        Range(0),
        'steps a rank may be ahead of the slowest one (0: all take each step together) or "unbounded"; needs '
        'sparse.mode = "ps": every push is then a step of the optimizer',
    ] = 0
    progress: Annotated[Amount, "seconds between lines of progress; 0: a line for every step"] = 5.0


@dataclass(frozen=True, slots=True)
class WorldSection:
    """[world]: which ranks hold the tables."""

    servers: Annotated[
        Servers,
        '"per-node": one server rank on each; or their number, or the ranks, [0, 1]; 0: compute ranks hold the tables',
    ] = "per-node"


@dataclass(frozen=True, slots=True)
class SparseSection:
    """[sparse]: how gradients travel, how rows are dealt out to owners, and what may change in the running job."""

    mode: Annotated[
        Mode,
        '"hybrid": rows to servers, the rest by all-reduce; "ps": all to servers; "allreduce", "allgather": all to all',
    ] = "hybrid"
    adapt_every: Annotated[
        Natural,
        "steps between looks whether a table should leave its servers, or return to them; 0: none",
    ] = 50
    partition: Annotated[
        Partitioning,
        '"cyclic": row i in part i mod n, balances sorted vocabularies; "block": contiguous rows',
    ] = "cyclic"
    parts: Annotated[Parts, "of each table, dealt to the servers in turn; 0: one for each server"] = 0
    search: Annotated[bool, "true: find the number of parts while training, table by table"] = False
    balance_every: Annotated[
        Natural, "steps between looks whether a much used part should move to another server; 0: none"
    ] = 0
    aggregate: Annotated[
        Aggregate,
        'a node\'s ranks sum rows before they send them, and fetch them once: if it pays, "always", "never"',
    ] = "auto"
    wire: Annotated[Wire, 'form of rows between nodes; "bfloat16" or "float16" send half the bytes'] = "float32"
    prefetch: Annotated[
        bool, "true: rows of the next batch that lie on other nodes are asked for while this one computes"
    ] = False
    cache_rows: Annotated[Natural, "rows of other nodes that a rank keeps of each table; 0: none"] = 0
    cache_policy: Annotated[
        Policy, 'which row goes for a new one: the one used least recently, "lru", or least often, "lfu"'
    ] = "lru"
    cache_staleness: Annotated[
        Natural,
        "steps a kept row is used without asking; 0: its server is asked whether it has changed",
    ] = 0


@dataclass(frozen=True, slots=True)
class TopologySection:
    """[topology]: the hosts of each supernode as a host list; without any, Slurm is asked."""

    supernodes: Annotated[
        tuple[str, ...],
        'hosts that share a switch below a slower trunk: ["node[01-16]", "node[17-32]"]; []: ask Slurm',
    ] = ()


@dataclass(frozen=True, slots=True)
class AllReduceSection:
    """[allreduce]: how dense gradients are summed over the ranks; sizes of buckets in MiB."""

    wire: Annotated[Wire, 'form of dense gradients between nodes; "bfloat16" or "float16" send half the bytes'] = (
        "float32"
    )
    algorithm: Annotated[
        Algorithm,
        '"auto": what measures best at the start; or "mpi", on one node "shared", on several "ring" and others',
    ] = "auto"
    bucket_mb: Annotated[Mebibytes, "MiB of gradients that are summed together"] = 4.0
    first_bucket_mb: Annotated[Mebibytes, "MiB of the sum that starts first: smaller, to start early"] = 1.0
    overlap: Annotated[bool, "sums begin while backward is still at work; false: after it"] = True
    check: Annotated[bool, "true: compare all parameters between the ranks after every step, to find faults"] = False


@dataclass(frozen=True, slots=True)
class CheckpointSection:
    """[checkpoint]: where to, how often, how many are kept; and whether training waits until they are on disk."""

    directory: Annotated[FilePath, "one folder for each step kept"] = "runs/lm"
    every: Annotated[Natural, "steps between checkpoints; 0: only at the end and when stopped by a signal"] = 0
    keep: Annotated[Count, "newest checkpoints kept"] = 2
    behind: Annotated[
        bool, "true: training stops to copy what is saved, and goes on while the copy is written; twice the memory"
    ] = False


@dataclass(frozen=True, slots=True)
class MetricsSection:
    """[metrics]: the file that measured values go to, one JSON object a line; relative to checkpoint.directory."""

    path: Annotated[OptionalPath, 'one JSON object a line; in checkpoint.directory, or an absolute path; "": none'] = (
        "metrics.jsonl"
    )


@dataclass(frozen=True, slots=True)
class Job:
    """One training job. `model` and `data` are the sections of its kind. `optimizer` is the rule itself: [optimizer]
    has its `kind` and the settings of that kind. `modes`: what [modes] says of parameters, by name pattern."""

    model: Any
    data: Any
    optimizer: Optimizer = field(default_factory=lambda: Adagrad(rate=0.05, initial=1e-5))
    training: TrainingSection = field(default_factory=TrainingSection)
    world: WorldSection = field(default_factory=WorldSection)
    sparse: SparseSection = field(default_factory=SparseSection)
    modes: Mapping[str, Mode] = field(default_factory=dict)
    topology: TopologySection = field(default_factory=TopologySection)
    allreduce: AllReduceSection = field(default_factory=AllReduceSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)

    @property
    def metrics_path(self) -> str:
        """The metrics file, in checkpoint.directory unless [metrics] names another place; "": none."""
        return str(Path(self.checkpoint.directory, self.metrics.path)) if self.metrics.path else ""

    @property
    def servers(self) -> Servers:
        """The ranks that hold tables: none where every compute rank holds all of them."""
        replicas = self.sparse.mode in ("allreduce", "allgather")
        return 0 if replicas and not {"ps", "hybrid"} & set(self.modes.values()) else self.world.servers


def default_job(kind: str) -> Job:
    """Return the job of `kind` whose file says nothing else. Local."""
    return task_of(kind).defaults


def read_job(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """Return the job of the TOML file at `path`, changed by `overrides`, each "section.key=value". Local.

    A value is read as TOML; what is not TOML is a string, so that `data.source=text.txt` needs no quotes. Raises
    UsageError, which names the file (or --set), the key and what was expected, for a file that cannot be read, an
    unknown section or key, a value of another type or outside its range.
    """
    values: dict[tuple[str, str], tuple[Any, str]] = {}
    sections = [section.name for section in fields(Job)]
    for section, content in _read_toml(path).items():
        if section not in sections:
            raise UsageError(f"{path}: unknown section [{printable(section)}]; {_suggest(section, sections)}")
        if not isinstance(content, dict):
            raise UsageError(f"{path}: {section} is {show(content)}; expected a section [{section}]")
        values |= {(section, key): (value, f"{path}: [{section}] {printable(key)}") for key, value in content.items()}
    for override in overrides:
        section, key, value = _parse_override(override)
        if section not in sections:
            raise UsageError(f"--set {override}: unknown section '{section}'; {_suggest(section, sections)}")
        values[section, key] = (value, f"--set {section}.{key}")

    chosen = {
        section: {key: value for (owner, key), value in values.items() if owner == section} for section in sections
    }
    default = default_job(_kind(*chosen["model"].get("kind", ("lm", ""))))
    optimizer = _optimizer(path, chosen.pop("optimizer"), default.optimizer)
    return Job(optimizer=optimizer, **{name: _section(default, name, given) for name, given in chosen.items()})


def _kind(value: Any, place: str) -> str:
    """Return the kind of the job, which decides what [model] and [data] may hold."""
    return checked(value, Literal[tuple(KINDS)], place)


def _read_toml(path: str | Path) -> dict[str, Any]:
    """Return what a job file says."""
    path = expanded(str(path), "job file")
    try:
        # A pipe is refused before it is opened: that would wait for somebody to write, and one rank alone could read.
        if not stat.S_ISREG(found := os.stat(path).st_mode) and not stat.S_ISDIR(found):
            raise UsageError(f"job file '{path}' is no file but a pipe, a socket or a device; expected a TOML file")
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"job file '{path}' cannot be read: {error.strerror}; expected a TOML file") from error
    if len(content) > MOST_BYTES:
        raise UsageError(f"job file '{path}' has more than {MOST_BYTES >> 20} MiB; expected a TOML file of some lines")
    try:
        return parse_toml(content.decode("utf-8-sig"))
    except ValueError as error:
        raise UsageError(f"job file '{path}' is not TOML: {error}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML text. Local. Raises ValueError for what is no TOML, also for what tomllib fails at:
    values nested too deep, numbers of too many digits."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists or tables are nested too deep") from None


def _parse_override(text: str) -> tuple[str, str, Any]:
    """Return (section, key, value) of "section.key=value"."""
    name, equals, value = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and section and key) or ("." in key and section != "modes"):
        raise UsageError(f"--set {printable(text)}: expected section.key=value, such as training.steps=100")
    try:
        parsed = parse_toml(f"value = {value}")
    except ValueError:
        parsed = {}
    return section, key, parsed["value"] if parsed.keys() == {"value"} else value.strip()


def _section(default: Job, name: str, values: Mapping[str, tuple[Any, str]]) -> Any:
    """Return the section `name` with the given values, each checked against the type and range of its field."""
    section = getattr(default, name)
    if name == "modes":
        return {pattern: checked(value, Mode, place) for pattern, (value, place) in values.items()}
    hints = hints_of(type(section))
    for key, (_, place) in values.items():
        if key not in hints:
            raise UsageError(f"{place}: unknown key; {_suggest(key, hints, default)}")
    return replace(section, **{key: checked(value, hints[key], place) for key, (value, place) in values.items()})


def _optimizer(path: str | Path, values: Mapping[str, tuple[Any, str]], default: Optimizer) -> Optimizer:
    """Return the optimiser of [optimizer], which checks its own settings; without any, the default one."""
    if not values:
        return default
    kind, place = values.get("kind", (default.name, ""))
    # Another kind by --set: what the file says of its own kind, other than the rate, does not concern it.
    replaced = place.startswith("--set")
    settings = {
        key: value
        for key, (value, place) in values.items()
        if key != "kind" and (key == "rate" or not replaced or place.startswith("--set"))
    }
    if isinstance(kind, str) and kind in OPTIMIZERS:
        hints = hints_of(OPTIMIZERS[kind])
        settings = {k: checked(v, hints[k], values[k][1]) if k in hints else v for k, v in settings.items()}
    if kind == default.name:
        settings = {f.name: getattr(default, f.name) for f in fields(default)} | settings
    try:
        return by_name(kind, **settings)
    except UsageError as error:
        places = [place for _, place in values.values() if place.startswith("--set")]
        raise UsageError(f"{path}{' with ' if places else ''}{', '.join(places)}: [optimizer] {error}") from error


def _suggest(name: str, known: Iterable[str], job: Job | None = None) -> str:
    """Return the nearest known name as a question, the section of `job` that has `name`, or all that is known."""
    said = nearest(name, known)
    if job is not None and not said.startswith("did"):
        for section in fields(job):
            if section.name != "modes" and name in (key.name for key in fields(getattr(job, section.name))):
                return f"it belongs to [{section.name}]"
    return said
