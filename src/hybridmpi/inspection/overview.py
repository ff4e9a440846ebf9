"""What a checkpoint holds, told by its manifest alone: no values are read, so that the largest one opens at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hybridmpi.checkpoint.generations import generations
from hybridmpi.checkpoint.layout import MANIFEST_FILE
from hybridmpi.checkpoint.manifest import read_manifest
from hybridmpi.inspection.contents import CARRIED, Contents
from hybridmpi.inspection.text import ago, columns, human_size, shape_text, shorten, when
from hybridmpi.inspection.tree import Branch, grown
from hybridmpi.wording import plural

# Sections of meta that have lines of their own, or that `--json` shows.
TOLD_ELSEWHERE = {"step", "job", "optimizer", "compute_ranks", "words_begin", "alphas", "run_id"}


def describe(contents: Contents, patterns: Sequence[str] | None = None) -> dict[str, Any]:
    """Return what a checkpoint holds, as plain data that JSON can hold. Local, reads no values.

    `patterns` choose among the parameters. Sizes are in bytes. Raises UsageError for a pattern that matches nothing.
    """
    checkpoint = contents.checkpoint
    parameters = []
    for name in contents.select(patterns):
        array, slots = contents.arrays[name], contents.slots[name]
        parameters.append({
            "name": name,
            "kind": array.kind,
            "shape": list(array.shape),
            "dtype": array.dtype.name,
            "size": array.nbytes,
            "partitions": len(array.pieces) if array.kind == "table" else None,
            "partition": checkpoint.tables[name].kind if array.kind == "table" else None,
            "slots": {slot: stored.nbytes for slot, stored in slots.items()},
        })  # fmt: skip
    return {
        "path": str(checkpoint.directory),
        "step": checkpoint.step,
        "created": checkpoint.created,
        "size": checkpoint.size,
        "hosts": sorted({entry["host"] for entry in read_manifest(checkpoint.directory)["files"]}),
        "servers": checkpoint.servers,
        "values": sum(math.prod(parameter["shape"]) for parameter in parameters),
        "parameters": parameters,
        "carried": [
            {"name": CARRIED + name, "shape": list(array.shape), "dtype": array.dtype.name}
            for name, array in checkpoint.carried_arrays.items()
        ],
        "words": checkpoint.word_count,
        "meta": checkpoint.meta,
        "incomplete": [p.name for p in generations(checkpoint.directory.parent) if not (p / MANIFEST_FILE).exists()],
    }


def render(found: dict[str, Any]) -> str:
    """Return what `describe` found as text for people: a header, the tree of parameters, the settings. Local."""
    values = sum(parameter["size"] for parameter in found["parameters"])
    state = sum(sum(parameter["slots"].values()) for parameter in found["parameters"])
    header = [
        ("step", f"{found['step']:,}"),
        ("written", f"{when(found['created'])}, {ago(found['created'])}, {_by_whom(found)}"),
        ("size", human_size(found["size"])),
        (
            "parameters",
            f"{plural(found['values'], 'value')} in {len(found['parameters']):,}, {human_size(values)}, "
            f"and {human_size(state)} of optimiser state",
        ),
    ]
    job = found["meta"].get("job")
    if isinstance(job, dict) and isinstance(job.get("model"), dict):
        header.insert(1, ("job", _settings(job["model"])))
    if isinstance(found["meta"].get("optimizer"), dict):
        header.insert(2, ("optimizer", _settings(found["meta"]["optimizer"])))
    if found["words"] is not None:
        header.append(("vocabulary", plural(found["words"], "word")))
    lines = [found["path"], *(f"  {key:<11} {text}" for key, text in header)]
    if found["parameters"]:
        lines += ["", *_tree(found["parameters"])]
    if found["carried"]:
        rows = [(array["name"], shape_text(array["shape"]), array["dtype"]) for array in found["carried"]]
        lines += ["", *columns([("carried", "shape", "dtype"), *rows], right=(1,))]
    meta = [
        (key, shorten(value))
        for key, value in sorted(found["meta"].items())
        if key not in TOLD_ELSEWHERE and value != {}
    ]
    if meta:
        lines += ["", *columns([("meta", "value"), *meta])]
    if found["incomplete"]:
        lines += [
            "",
            f"not whole, beside it (being written, or a write that was cut off): {', '.join(found['incomplete'])}",
        ]
    return "\n".join(lines)


def _tree(parameters: list[dict[str, Any]]) -> list[str]:
    rows = [("parameter", "kind", "shape", "dtype", "size", "partitions", "optimiser state")]
    by_name = {parameter["name"]: parameter for parameter in parameters}
    for branch in grown(by_name):
        rows.append(_leaf(branch, by_name[branch.names[0]]) if branch.is_leaf else _group(branch, by_name))
    return columns(rows, right=(2, 4))


def _leaf(branch: Branch, parameter: dict[str, Any]) -> tuple[str, ...]:
    return (
        branch.label,
        parameter["kind"],
        shape_text(parameter["shape"]),
        parameter["dtype"],
        human_size(parameter["size"]),
        f"{parameter['partitions']} {parameter['partition']}" if parameter["partitions"] else "-",
        ", ".join(parameter["slots"]) or "-",
    )


def _group(branch: Branch, by_name: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    size = sum(by_name[name]["size"] for name in branch.names)
    return (branch.label, f"{len(branch.names)} parameters", "", "", human_size(size), "", "")


def _by_whom(found: dict[str, Any]) -> str:
    """Return which ranks wrote it, and where."""
    clients = found["meta"].get("compute_ranks")
    ranks = [plural(clients, "compute rank")] if isinstance(clients, int) else []
    if found["servers"]:
        ranks.append(plural(found["servers"], "file") + " of tables")
    hosts = found["hosts"]
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts, {hosts[0]} to {hosts[-1]}"
    return f"by {', '.join(ranks) or 'one rank'}, on {where}"


def _settings(section: dict[str, Any]) -> str:
    """Return a section of settings on one line: the kind or name first."""
    first = str(section.get("kind") or section.get("name") or "")
    rest = ", ".join(f"{key} {value}" for key, value in section.items() if key not in ("kind", "name"))
    return shorten(f"{first}: {rest}" if first and rest else first or rest, 100)
