"""The all-reduce side by side with MPI's own and with gloo: one machine, one sitting, the targets checked.

Purpose     time of a float32 sum in place by what a Trainer uses ("auto"), for each MPI and number of ranks, by size:
            how many times as fast as MPI_Allreduce and as torch.distributed on gloo (peers/allreduce_gloo.py), and
            what share of the memory limit, the time of plain copies of the bytes that must move, on all cores at once
Environment --python names a Python with hybridmpi and one MPI, --mpich-python one with another MPI, --torch-python
            one with torch: python -m venv V && V/bin/pip install torch==2.13.0 numpy==2.4.6
Usage       python benchmarks/allreduce_against_peers.py --python V/bin/python [--mpich-python W/bin/python]
            [--torch-python T/bin/python] [--ranks 2,4] [--launches 5] [--bytes 4,...] [--json FILE] [--markdown]
Validated   by each program, every size before and after it is timed; a program whose result is wrong ends this one
            too, and nothing is reported
Time        a launch can be three times as slow as the next one, as a whole. So every launch is repeated, all kinds of
            launches in turn; times are medians over the launches, and so is "x gloo", their quotient; "x MPI" and "of
            the limit" are quotients within each launch, where the two alternate, then their median over the launches.
            More ranks than cores measure the scheduler as well, and there MPICH spins while it waits: four ranks on two
            cores take 64 ms for 64 KiB and minutes for 64 MiB, so give it small sizes only, in a sitting of its own.
Targets     TARGETS below; the last column says which are missed
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import programs

KIB, MIB = 1 << 10, 1 << 20
SIZES = (4, 64, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
GLOO = Path(__file__).parent / "peers" / "allreduce_gloo.py"
# One launch with all sizes takes about a minute, where a rank that waits does not keep the others from working.
LAUNCH_SECONDS = 900

Summary = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """At least so many times as fast as a peer (for "limit": that share of it) from one size to another."""

    peer: str
    least: float
    first: int = 4
    last: int = 256 * MIB
    ranks: int | None = None  # None: any number

    def says(self) -> str:
        """Return the target missed in words: "below 1.2 x MPI"."""
        return f"below {self.least:g} of the limit" if self.peer == "limit" else f"below {self.least:g} x {self.peer}"


TARGETS = (
    Target("MPI", 0.95),
    Target("MPI", 1.2, 4 * MIB, 4 * MIB),
    Target("MPI", 1.5, 64 * MIB, 64 * MIB),
    Target("gloo", 2, MIB),
    Target("limit", 0.7, 64 * MIB, 64 * MIB, ranks=2),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Launch everything in turn, print a table for each MPI and number of ranks, and return the exit status."""
    options = _parse(arguments)
    pythons = {"hybridmpi": options.python, "hybridmpi on the second MPI": options.mpich_python}
    kinds = {}  # (program, ranks): command line
    for ranks in options.ranks:
        for name, python in pythons.items():
            if python:
                kinds[name, ranks] = [*_launch(python, ranks), "--bytes", ",".join(map(str, options.bytes))]
        if options.torch_python:
            peer = [options.torch_python, str(GLOO), "--ranks", str(ranks)]
            kinds["gloo", ranks] = [*peer, "--bytes", *map(str, options.bytes)]
    commands = {f"{name}, {ranks} ranks": argv for (name, ranks), argv in kinds.items()}
    printed = programs.run_in_turn(commands, options.launches, LAUNCH_SECONDS, "launch")
    launches = dict(zip(kinds, printed.values(), strict=True))
    summary = summarise(launches, options.bytes)
    if options.json:
        options.json.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(as_text(summary, options.markdown))
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="has hybridmpi (default: this one)")
    parser.add_argument("--mpich-python", metavar="PATH", help="has hybridmpi with another MPI")
    parser.add_argument("--torch-python", metavar="PATH", help="has torch")
    parser.add_argument("--ranks", type=_numbers, default=[2, 4], metavar="N,...", help="numbers of ranks (2,4)")
    parser.add_argument("--launches", type=int, default=5, metavar="N", help="launches of each kind (%(default)s)")
    parser.add_argument("--bytes", type=_numbers, default=list(SIZES), metavar="N,...", help="sizes, multiples of 4")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there: tables, launches, machine")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    options = parser.parse_args(arguments)
    if options.launches < 1:
        parser.error("--launches must be at least 1")
    if any(size % 4 for size in options.bytes):
        parser.error("--bytes: expected multiples of 4, the bytes of a float32")
    if options.json and not options.json.absolute().parent.is_dir():
        parser.error(f"--json {options.json}: there is no such folder; make it first")
    return options


def _numbers(text: str) -> list[int]:
    found = [int(part) for part in text.split(",")]
    if min(found) < 1:
        raise ValueError
    return sorted(set(found))


_numbers.__name__ = "whole numbers from 1 up, separated by commas"  # argparse: "invalid whole numbers ... value"


def _launch(python: str, ranks: int) -> list[str]:
    return [
        *(python, "-m", "hybridmpi", "launch", "-n", str(ranks), "--"),
        *("bench", "allreduce", "--algorithms", "auto", "--json"),
    ]


def summarise(launches: Mapping[tuple[str, int], Sequence[Summary]], sizes: Sequence[int]) -> Summary:
    """Return tables, machine and every launch as one object. `launches`: what each printed, by (program, ranks)."""
    tables = []
    for (name, ranks), found in launches.items():
        if name != "gloo":
            gloo = [_as_ours(run) for run in launches.get(("gloo", ranks), [])]
            tables.append({
                "mpi": mpi_name(found[0]),
                "ranks": ranks,
                "launches": len(found),
                "load_average_by_launch": [run["machine"]["load_average"][0] for run in found],
                "rows": [_row(size, ranks, found, gloo) for size in sizes],
            })  # fmt: skip
    ours = next(found[0] for (name, _), found in launches.items() if name != "gloo")
    torch = next((found[0]["version"] for (name, _), found in launches.items() if name == "gloo"), None)
    return {
        "bench": "allreduce_against_peers",
        "params": {"bytes": list(sizes), "dtype": "float32"},
        "machine": _machine(ours["machine"]) | ({"torch": torch} if torch else {}),
        "validated": True,
        "targets": [asdict(target) for target in TARGETS],
        "tables": tables,
        "launches": [{"program": name, "ranks": ranks, "printed": found} for (name, ranks), found in launches.items()],
    }


def _row(size: int, ranks: int, found: Sequence[Summary], gloo: Sequence[Summary]) -> Summary:
    """Return times (us), ratios by peer and missed targets at one size. `gloo`: its launches, if any."""
    by_launch = {name: [_median(run, name, size) for run in found] for name in ("auto", "mpi")}
    if all(_find(run, "copies", size) for run in found):
        by_launch["copies"] = [_median(run, "copies", size) for run in found]
    if gloo:
        by_launch["gloo"] = [_median(run, "gloo", size) for run in gloo]
    times = {name: statistics.median(values) for name, values in by_launch.items()}
    ratios = {"MPI": _quotients(by_launch["auto"], by_launch["mpi"])}
    if "copies" in by_launch:
        ratios["limit"] = _quotients(by_launch["auto"], by_launch["copies"])
    if gloo:
        ratios["gloo"] = {"median": times["gloo"] / times["auto"]}
    return {
        "bytes": size,
        "us": {name: _significant(value) for name, value in times.items()},
        "ratio": {peer: {name: _significant(value) for name, value in ratio.items()} for peer, ratio in ratios.items()},
        "missed": missed(size, ranks, {peer: ratio["median"] for peer, ratio in ratios.items()}),
    }


def missed(size: int, ranks: int, ratios: Mapping[str, float]) -> list[str]:
    """Return the targets missed, in words; of several on one peer, the highest. `ratios`: by peer."""
    words = {}
    for target in sorted(TARGETS, key=lambda target: target.least):
        applies = target.first <= size <= target.last and target.ranks in (None, ranks)
        if applies and ratios.get(target.peer, target.least) < target.least:
            words[target.peer] = target.says()
    return list(words.values())


def _quotients(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Return how many times as fast ours is within the launches: their median, the smallest, the largest."""
    quotients = [b / a for a, b in zip(ours, theirs, strict=True)]
    return {"median": statistics.median(quotients), "min": min(quotients), "max": max(quotients)}


def _find(run: Mapping[str, Any], name: str, size: int) -> Summary | None:
    return next((row for row in run["results"] if (row["name"], row["bytes"]) == (name, size)), None)


def _median(run: Mapping[str, Any], name: str, size: int) -> float:
    row = _find(run, name, size)
    if row is None or row["unit"] != "us":
        sys.exit(f"no time of '{name}' at {size} bytes among the results of a launch; expected a row of it in us")
    return row["median"]


def _as_ours(run: Mapping[str, Any]) -> Summary:
    """Return what peers/allreduce_gloo.py printed with its rows in the form of `hybridmpi bench`."""
    return {"results": [{"name": "gloo", "bytes": row["params"]["bytes"], **row} for row in run["results"]]}


def _significant(value: float) -> float:
    return float(f"{value:.5g}")


def mpi_name(run: Mapping[str, Any]) -> str:
    """Return the MPI of a launch with its version: Open MPI v5.0.11, MPICH 5.0.2."""
    return " ".join(word for word in run["machine"]["mpi"].split() if word != "Version:")


def _machine(found: Mapping[str, Any]) -> Summary:
    """Return what all launches share: processor, cores, memory, versions."""
    names = ("cores", "python", "numpy", "numba", "blas_threads")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": _processor() or found["processor"],
        "memory_GiB": round(memory, 1),
        **{name: found[name] for name in names},
    }


def _processor() -> str | None:
    """Return the processor's name where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def as_text(summary: Summary, markdown: bool = False) -> str:
    """Return the tables with the machine, for people or, in Markdown, for documents."""
    machine = dict(summary["machine"])
    about = f"{machine.pop('cores')} cores of {machine.pop('processor')}, {machine.pop('memory_GiB'):g} GiB, "
    about += f"BLAS threads {machine.pop('blas_threads')}, Python {machine.pop('python')}, "
    about += ", ".join(f"{name} {str(version).removeprefix('torch ')}" for name, version in machine.items())
    parts = [about]
    for table in summary["tables"]:
        launches = f"{table['launches']} launch{'es' * (table['launches'] > 1)}"
        loads = table["load_average_by_launch"]
        title = f"{table['mpi']}, {table['ranks']} ranks ({launches}, load average {min(loads):g} to {max(loads):g})"
        cells = _cells(table["rows"])
        parts.append(f"{title}:\n\n{_markdown(cells)}" if markdown else f"{title}\n{_aligned(cells)}")
    count = sum(len(row["missed"]) for table in summary["tables"] for row in table["rows"])
    return "\n\n".join([*parts, f"targets missed: {count or 'none'}"])


def _cells(rows: Sequence[Summary]) -> list[list[str]]:
    """Return a table's lines, the header first; there is a column only for what was measured."""
    has = {peer for row in rows for peer in row["ratio"]}
    header = ["bytes", "auto, us", "MPI, us", "x MPI (by launch)"]
    header += ["x gloo"] * ("gloo" in has) + ["of the limit"] * ("limit" in has) + ["target"]
    lines = [header]
    for row in rows:
        ratio = row["ratio"]
        mpi = ratio["MPI"]
        line = [_size(row["bytes"]), _time(row["us"]["auto"]), _time(row["us"]["mpi"])]
        line.append(f"{_ratio(mpi['median'])} ({_ratio(mpi['min'])} to {_ratio(mpi['max'])})")
        if "gloo" in has:
            line.append(_ratio(ratio["gloo"]["median"]))
        if "limit" in has:
            line.append(_ratio(ratio["limit"]["median"]) if "limit" in ratio else "")
        lines.append([*line, f"missed: {', '.join(row['missed'])}" if row["missed"] else ""])
    return lines


def _size(size: int) -> str:
    """Return bytes in the largest unit that divides them: 4, 64 KiB, 16 MiB."""
    if size % MIB == 0:
        return f"{size // MIB} MiB"
    return f"{size // KIB} KiB" if size % KIB == 0 else f"{size}"


def _time(microseconds: float) -> str:
    return f"{microseconds:,.1f}" if microseconds < 100 else f"{microseconds:,.0f}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return columns as wide as they must be: numbers to the right, the last column's words to the left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([*(cell.rjust(width) for cell, width in zip(line[:-1], widths, strict=False)), line[-1]]).rstrip()
        for line in lines
    )


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    header, *rest = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([header, "|" + "---|" * len(lines[0]), *rest])


if __name__ == "__main__":
    sys.exit(main())
