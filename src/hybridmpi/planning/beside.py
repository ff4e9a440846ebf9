"""What a plan predicted beside what a run measured: seconds by phase and bytes by category, in every mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hybridmpi.planning.modes import Mode
from hybridmpi.planning.plan import human
from hybridmpi.planning.predict import Seconds
from hybridmpi.planning.report import Outlook, columns, wrapped

# Phases that both sides know: of a step that ran, those of training/phases.py that make it up.
PHASES: dict[str, tuple[str, ...]] = {
    "pull": ("pull",),
    "compute": ("forward", "backward", "overlap"),
    "push": ("local", "push"),
    "wait": ("wait",),
    "sums": ("allreduce", "tables"),
    "update": ("update",),
}


@dataclass(frozen=True)
class Measured:
    """Steps of a mode that ran: seconds of a step, and of it by phase (`PHASES`), as medians over the steps; bytes that
    a compute rank counted by category, mean over steps and ranks."""

    step: float
    seconds: Mapping[str, float]
    bytes: Mapping[str, float]


def by_phase(seconds: Seconds) -> dict[str, float]:
    """Return predicted seconds by the phases of `PHASES`. Local."""
    sums = seconds.allreduce + seconds.allgather
    return {
        "pull": seconds.pull,
        "compute": seconds.compute,
        "push": seconds.local + seconds.push,
        "wait": seconds.agree + seconds.exchange - sums - seconds.update,
        "sums": sums,
        "update": seconds.update,
    }


@dataclass(frozen=True)
class Comparison:
    """An outlook beside the modes that ran, `steps` steps each; `left_out`: why the others did not."""

    outlook: Outlook
    measured: Mapping[Mode, Measured]
    left_out: Mapping[Mode, str]
    steps: int

    def ratio(self, mode: Mode) -> float:
        """Return the predicted step over the measured one. Local."""
        return self.outlook.modes[mode].seconds.step / self.measured[mode].step

    def as_json(self) -> dict[str, Any]:
        """Return the outlook and the measurements as JSON values. Local."""
        found: dict[str, Any] = {}
        for mode, predicted in self.outlook.modes.items():
            if mode not in self.measured:
                found[mode] = {"left_out": self.left_out[mode]}
                continue
            expected = by_phase(predicted.seconds)
            found[mode] = asdict(self.measured[mode]) | {
                "predicted": {"step": predicted.seconds.step, "seconds": expected, "bytes": predicted.bytes.counted},
                "ratio": self.ratio(mode),
            }
        return self.outlook.as_json() | {"steps": self.steps, "measured": found}

    def __str__(self) -> str:
        lines = [str(self.outlook), "", *self._times(), "", *self._bytes()]
        lines += [line for mode, why in self.left_out.items() for line in wrapped(f"{mode} did not run: {why}")]
        return "\n".join(lines)

    def _times(self) -> list[str]:
        units, unit = self.outlook.workload.units, self.outlook.workload.unit
        rows = [("ms", "", "step", f"{unit}/s", *PHASES, "other")]
        for mode, measured in self.measured.items():
            seconds = self.outlook.modes[mode].seconds
            for name, step, phases in (
                ("predicted", seconds.step, by_phase(seconds)), ("measured", measured.step, measured.seconds)
            ):  # fmt: skip
                other = step - sum(phases.values())
                times = [step, *(phases[phase] for phase in PHASES), other]
                step_ms, *phases_ms = (f"{time * 1e3:.2f}" for time in times)
                rows.append((mode if name == "predicted" else "", name, step_ms, f"{units / step:,.0f}", *phases_ms))
            rows.append(("", "ratio", f"{self.ratio(mode):.2f}", *[""] * (len(rows[0]) - 3)))
        note = "predicted beside measured: medians of"
        return [*columns(rows, left=(0, 1)), f"  {note} {self.steps} steps, phases as means over the ranks"]

    def _bytes(self) -> list[str]:
        predicted = {mode: self.outlook.modes[mode].bytes.counted for mode in self.measured}
        sides = [*predicted.values(), *(measured.bytes for measured in self.measured.values())]
        categories = [c for c in (sides[-1] if sides else ()) if any(side.get(c, 0) >= 0.5 for side in sides)]
        rows = [("bytes", "", *categories)]
        for mode, measured in self.measured.items():
            for name, side in (("predicted", predicted[mode]), ("measured", measured.bytes)):
                sizes = (human(side.get(category, 0.0)) for category in categories)
                rows.append((mode if name == "predicted" else "", name, *sizes))
        return [*columns(rows, left=(0, 1)), "  bytes of a step that a compute rank counts, mean over the ranks"]
