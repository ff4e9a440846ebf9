"""The outlook of a job as text of 100 columns and as JSON: choices, bytes, predicted steps."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from hybridmpi.errors import UsageError
from hybridmpi.planning.costs import Transport
from hybridmpi.planning.decide import Decision, decide, possible_ways, predict_modes
from hybridmpi.planning.machine import Machine
from hybridmpi.planning.modes import Mode, Way
from hybridmpi.planning.plan import human
from hybridmpi.planning.predict import ALGORITHMS, Prediction, Seconds, predict
from hybridmpi.planning.workload import Dense, Sparse, Workload, table_balance
from hybridmpi.wording import plural

WIDTH = 100


@dataclass(frozen=True)
class Outlook:
    """What a job is predicted to do on a machine."""

    workload: Workload
    machine: Machine
    transport: Transport

    @cached_property
    def modes(self) -> dict[Mode, Prediction]:
        """The predicted step in every mode."""
        return predict_modes(self.workload, self.machine, self.transport)

    @cached_property
    def decisions(self) -> list[Decision]:
        """What mode "hybrid" does with each parameter, and why."""
        ways = self.modes["hybrid"].ways
        return [decide(p, self.workload, ways, self.machine, self.transport) for p in self.workload.parameters]

    def parameter(self, name: str) -> Dense | Sparse:
        """Return the parameter of that name. Local. Raises UsageError, naming the nearest."""
        by_name = {p.name: p for p in self.workload.parameters}
        if name not in by_name:
            near = get_close_matches(name, by_name, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"expected one of {', '.join(by_name)}"
            raise UsageError(f"the model has no parameter '{name}': {hint}")
        return by_name[name]

    def alone(self, parameter: Dense | Sparse, way: Way) -> Prediction:
        """Return the step that a parameter alone would take, without computing. Local."""
        dense, tables = ((parameter,), ()) if isinstance(parameter, Dense) else ((), (parameter,))
        workload = Workload(dense, tables, self.workload.touched, 0.0)
        return predict(workload, {parameter.name: way}, self.machine, self.transport)

    # -- JSON ------------------------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON values. Local."""
        w = self.workload
        return {
            "machine": asdict(self.machine),
            "transport": asdict(self.transport),
            "unit": w.unit,
            "units_per_step": w.units,
            "parameters": [self._parameter_json(p, d) for p, d in zip(w.parameters, self.decisions, strict=True)],
            "modes": {
                mode: {
                    "seconds": asdict(p.seconds) | {"step": p.seconds.step},
                    "per_second": w.units / p.seconds.step,
                    "bytes": asdict(p.bytes),
                    "ways": dict(p.ways),
                }
                for mode, p in self.modes.items()
            },
        }

    def _parameter_json(self, parameter: Dense | Sparse, decision: Decision) -> dict[str, Any]:
        described = {
            "name": parameter.name,
            "shape": list(parameter.shape),
            "dtype": parameter.dtype,
            "bytes": parameter.bytes,
            "kind": "dense" if isinstance(parameter, Dense) else "sparse",
            "way": decision.way,
            "reason": decision.reason,
            "added_seconds": decision.seconds,
            "step_bytes": {
                way: asdict(self.alone(parameter, way).bytes) for way in possible_ways(parameter, self.machine)
            },
        }
        if isinstance(parameter, Sparse):
            touched = self.workload.touched[parameter.name]
            described |= {
                "touched": asdict(touched),
                "alpha": touched.alpha(parameter.rows)._asdict(),
                "crossover_alpha": decision.crossover,
                "balance": table_balance(parameter, touched, self.machine)._asdict(),
            }
        return described

    # -- text ------------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        machine, w = self.machine, self.workload
        owners = "the compute ranks hold the rows" if machine.embedded else plural(machine.owners, "server")
        link = f", links of {machine.link_rate / 1e6:,.1f} MB/s each way" if machine.nodes > 1 else ""
        return "\n".join([
            f"{plural(machine.nodes, 'node')}, {plural(machine.ranks, 'compute rank')}, {owners}{link}; "
            f"{w.units:,.0f} {w.unit} a step",
            *self._together(),
            *self._substituted(),
            "",
            *self._parameters(),
            "",
            *self._modes(),
            "",
            *(line for d in self.decisions for line in wrapped(f"{d.name}: {d.reason}")),
        ])  # fmt: skip

    def _together(self) -> list[str]:
        """What ranks of a node do together."""
        done = [
            *(["sum the rows that they push"] if self.transport.local else []),
            *(["pull together what they want of other nodes"] if self.transport.together else []),
        ]
        return wrapped(f"ranks of a node {' and '.join(done)}", indent=0) if done else []

    def _substituted(self) -> list[str]:
        """What is predicted in place of an all-reduce that has no formula between nodes of one kind."""
        given = self.transport.algorithm
        if given in ("auto", *ALGORITHMS) or self.machine.nodes == 1:
            return []
        text = (
            f"all-reduce '{given}' is not predicted here: sums take the time of the fastest of {', '.join(ALGORITHMS)}"
        )
        return wrapped(text, indent=0)

    def _parameters(self) -> list[str]:
        head = ("parameter", "shape", "size", "alpha", "cross", "goes by", "bytes/rank", "bytes/server", "load")
        rows = []
        for parameter, decision in zip(self.workload.parameters, self.decisions, strict=True):
            moved = self.alone(parameter, decision.way).bytes
            at_server = moved.server_in + moved.server_out if decision.way == "ps" else 0
            alpha = crossover = load = "-"
            if isinstance(parameter, Sparse):
                touched = self.workload.touched[parameter.name]
                alpha = f"{touched.alpha(parameter.rows).rank:.3g}"
                crossover = "none" if decision.crossover is None else f"{decision.crossover:.3g}"
                load = f"{table_balance(parameter, touched, self.machine).access:.2f}"
            rows.append((
                parameter.name, " x ".join(map(str, parameter.shape)), human(parameter.bytes), alpha, crossover,
                decision.way, human(sum(moved.counted.values())), human(at_server), load,
            ))  # fmt: skip
        return [
            *columns([head, *rows], left=(0, 5)),
            *wrapped(
                "alpha: rows that a rank touches in a step, of all; cross: the alpha above which all-reduce beats "
                "owners; bytes of a step, to a server those from other nodes and back; load: rows touched at the "
                "busiest owner over the mean"
            ),
        ]

    def _modes(self) -> list[str]:
        phases = [f.name for f in fields(Seconds) if f.name != "embedded"]
        used = [name for name in phases if any(getattr(p.seconds, name) >= 5e-6 for p in self.modes.values())]
        head = ("ms", "step", f"{self.workload.unit}/s", *used)
        rows = [
            (
                mode,
                f"{p.seconds.step * 1e3:.2f}",
                f"{self.workload.units / p.seconds.step:,.0f}",
                *(f"{getattr(p.seconds, name) * 1e3:.2f}" for name in used),
            )
            for mode, p in self.modes.items()
        ]
        beside = "" if self.machine.embedded else "; servers work beside what follows it"
        return [*columns([head, *rows], left=(0,)), f"  predicted step by mode{beside}"]

    def explain(self, name: str) -> str:
        """Return all that there is to one parameter, as text. Local. Raises UsageError for an unknown name."""
        parameter = self.parameter(name)
        decision = next(d for d in self.decisions if d.name == name)
        lines = [f"{name}, {' x '.join(map(str, parameter.shape))} {parameter.dtype}, {human(parameter.bytes)}"]
        if isinstance(parameter, Sparse):
            touched = self.workload.touched[name]
            alpha, even = touched.alpha(parameter.rows), table_balance(parameter, touched, self.machine)
            lines += [
                f"  rows touched in a step: by a rank {touched.rank:,.1f} (alpha {alpha.rank:.3g}), by a node "
                f"{max(touched.nodes):,.1f} ({alpha.node:.3g}), by all {touched.all:,.1f} ({alpha.all:.3g})",
                f"  owners, busiest over mean: {even.bytes:.2f} by bytes held, {even.access:.2f} by rows touched",
            ]
        lines += wrapped(decision.reason)
        for way in possible_ways(parameter, self.machine):
            alone = self.alone(parameter, way)
            chosen = " (chosen)" if way == decision.way else ""
            added = decision.seconds[way] * 1e3
            lines += ["", f"  {way}{chosen}: adds {added:.2f} ms to the step; alone:"]
            moved, phases = alone.bytes, fields(Seconds)
            head = ("phase", "ms", "node in", "node out", "in a node")
            rows = [
                (f.name, f"{seconds * 1e3:.3f}", *(human(link.get(f.name, 0)) for link in links))
                for f in phases
                if (seconds := getattr(alone.seconds, f.name)) and f.name not in ("embedded", "agree")
                for links in [(moved.node_in, moved.node_out, moved.within)]
            ]
            lines += [f"  {line}" for line in columns([head, *rows], left=(0,))]
            counted = ", ".join(f"{category} {human(size)}" for category, size in moved.counted.items() if size)
            lines += wrapped(f"a rank counts: {counted or 'nothing'}", indent=4)
            if way == "ps":
                text = f"busiest server: {human(moved.server_in)} in and {human(moved.server_out)} out between nodes"
                lines += wrapped(text, indent=4)
        return "\n".join(lines)


def columns(rows: Sequence[Sequence[str]], left: tuple[int, ...]) -> list[str]:
    """Return rows as lines of aligned columns, those numbered in `left` to the left. Local."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def wrapped(text: str, indent: int = 2) -> list[str]:
    """Return `text` as lines of at most `WIDTH`, indented. Local."""
    return textwrap.wrap(text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2))
