"""What passes did: rounds, the rows of each, and the time of every operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Times:
    """What is noted while passes run. seconds, rows, calls by (type, operation); batches: rows of each round."""

    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    rows: dict[tuple[str, str], int] = field(default_factory=dict)
    calls: dict[tuple[str, str], int] = field(default_factory=dict)
    scheduling: float = 0.0
    passes: int = 0
    rounds: list[int] = field(default_factory=list)

    def add(self, type_name: str, operation: str, rows: int, seconds: float) -> None:
        """Note one step."""
        key = type_name, operation
        self.seconds[key] = self.seconds.get(key, 0.0) + seconds
        self.rows[key] = self.rows.get(key, 0) + rows
        self.calls[key] = self.calls.get(key, 0) + 1

    def schedule(self, schedule: Any, seconds: float) -> None:
        """Note the rounds of one pass, and how long it took to find them and to prepare memory."""
        self.scheduling += seconds
        self.passes += 1
        self.rounds += [batch.last - batch.first for batch in schedule.batches]


class Report:
    """What passes did; `str()` is a page for people."""

    def __init__(self, times: Times, total: float, lists: Mapping[str, Sequence[Any]]) -> None:
        self.times, self.total, self.lists = times, total, lists

    def __str__(self) -> str:
        times = self.times
        sizes = sorted(times.rounds)
        middle = sizes[len(sizes) // 2] if sizes else 0
        lines = [
            f"{times.passes} passes, {len(sizes)} batches of vertices of one type and round: "
            f"{sizes[0] if sizes else 0} to {sizes[-1] if sizes else 0} rows, half of them at most {middle}",
            f"scheduling {1e3 * times.scheduling:.3f} ms of {1e3 * self.total:.3f} ms "
            f"({times.scheduling / self.total:.1%})",
            f"{'type':<12}{'calls':>8}{'rows':>10}{'ms':>10}{'share':>8}   operation",
        ]
        for key, seconds in sorted(times.seconds.items(), key=lambda item: -item[1]):
            lines.append(
                f"{key[0]:<12}{times.calls[key]:>8}{times.rows[key]:>10}{1e3 * seconds:>10.3f}"
                f"{seconds / self.total:>8.1%}   {key[1]}"
            )
        return "\n".join(lines)

    def operations(self) -> str:
        """Return the operation lists of all types."""
        return "\n".join(
            line for name, nodes in self.lists.items() for line in (f"{name}:", *(f"  {node!r}" for node in nodes))
        )
