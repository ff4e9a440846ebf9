"""The view of a run as lines of text: redrawn on a terminal, or one line at a time for a log."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from hybridmpi.inspection.text import shown_width, tame
from hybridmpi.watching import evaluations
from hybridmpi.watching.history import History
from hybridmpi.watching.present import QUIET_SECONDS, WINDOW, Present, evaluation_is_due, present, quiet
from hybridmpi.watching.words import Glyphs, bar, duration, number, scaled, size, sparkline
from hybridmpi.wording import plural

INDENT = 10
SIDE_BY_SIDE = 104
NOTES_SHOWN = 4


def view(history: History, age: float, width: int, of: Glyphs, place: str) -> list[str]:
    """Return the lines of the whole view, none longer than `width`. Local.

    `age`: seconds since the file grew; `place`: what is watched.
    """
    now = present(history)
    lines = [_title(history, place), _progress(history, now, width, of)]
    if now is not None:
        lines += ["", *_curves(history, now, width, of), *_held_out(history), ""]
        time, moved = _time(now, history, of), _bytes(now, history, of)
        lines += _beside(time, moved) if width >= SIDE_BY_SIDE else [*time, "", *moved]
    if said := _changes(history):
        lines += ["", *said]
    lines += ["", state(history, now, age)]
    return [_cut(line, width) for line in lines]


def plain(history: History) -> str:
    """Return one line about the latest step. Local."""
    now = present(history)
    if now is None:
        return "no step yet"
    of_all = f" of {history.steps:,} ({history.step / history.steps:.0%})" if history.steps else ""
    left = f", about {duration(now.left)} left" if math.isfinite(now.left) else ""
    rate = f"{_whole(now.rate)} {history.unit}/s"
    return f"step {history.step:,}{of_all}  loss {number(now.mean)}  {rate}  {duration(now.seconds)} a step{left}"


def evaluated(step: int, values: Mapping[str, float]) -> str:
    """Return what an evaluation said in one line. Local."""
    said = ", ".join(f"{name} {number(value)}" for name, value in evaluations.told(values).items())
    return f"step {step:,}: {said or 'nothing'}"


def state(history: History, now: Present | None, age: float) -> str:
    """Return in a line whether the run goes on, has ended, or has been silent for long. Local."""
    end = history.end
    if end is not None:
        took = f"in {duration(history.clock)}"
        if end.get("stopped"):
            return f"stopped by a signal after step {end['step']:,} of {history.steps:,}, {took}; --resume continues it"
        return f"done: {end['step']:,} steps {took}"
    seconds = now.seconds if now else math.nan
    if not quiet(history, age, seconds):
        when = "just now" if age < 2 else f"{duration(age)} ago"
        if now:
            return f"last line {when}"
        compiles = ": the first compiles what no job here has used before"
        return "started, no step yet" if age < QUIET_SECONDS else f"started {when}, no step yet{compiles}"
    takes = f", steps take {duration(seconds)}" if now else ""
    why = "an evaluation is due" if evaluation_is_due(history) else "it may be writing a checkpoint, or be gone"
    return f"NO LINE FOR {duration(age)}{takes}: {why}; the job's own output says more"


def _title(history: History, place: str) -> str:
    if not history.starts:
        return place
    run = history.starts[-1].line
    ranks, servers, nodes = (int(run.get(name, 0)) for name in ("compute_ranks", "servers", "nodes"))
    kind = history.job.get("model", {}).get("kind", "job")
    where = f"{plural(nodes, 'node')}, {run.get('host', '?')}" + (" and others" if nodes > 1 else "")
    return f"{place}   {kind}: {plural(ranks, 'compute rank')}, {plural(servers, 'server')}, {where}"


def _progress(history: History, now: Present | None, width: int, of: Glyphs) -> str:
    if not history.steps:
        return f"step {history.step:,}"
    share = history.step / history.steps
    text = f"step {history.step:,} of {history.steps:,}"
    times = f"  {share:.0%}  {duration(history.clock)} so far"
    if now is not None and math.isfinite(now.left):
        times += f", about {duration(now.left)} left"
    return f"{text}  {bar(share, max(10, min(40, width - len(text) - len(times) - 2)), of)}{times}"


def _curves(history: History, now: Present, width: int, of: Glyphs) -> list[str]:
    over = f"the last {plural(min(WINDOW, len(history.recent)), 'step')}"
    room = min(80, width - INDENT)
    change = "" if now.change is None else f", {_changed(now.change, now.mean)} the {WINDOW} before"
    losses = history.curves.mean("loss")
    lines = [_label("loss") + f"{number(now.loss)} now; mean of {over} {number(now.mean)}{change}"]
    if history.skipped:
        lines.append(_label() + f"{plural(history.skipped, 'step')} skipped: something was not finite")
    if curve := sparkline(losses[history.curves.count("step") > 0], room, of):
        lines.append(_label() + curve)
    rate = f"{_whole(now.rate)} {history.unit}/s, {duration(now.seconds)} a step (medians of {over})"
    lines.append(_label("speed") + rate + _whose(history))
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = history.curves.mean("examples") / history.curves.mean("seconds")
    if curve := sparkline(rates[history.curves.count("step") > 0], room, of):
        lines.append(_label() + curve)
    return lines


def _changed(change: float, mean: float) -> str:
    if change == 0.0:
        return "within noise of"
    return f"{abs(change / (mean - change)):.1%} {'less than' if change < 0 else 'MORE than'}"


def _whose(history: History) -> str:
    staleness = history.job.get("training", {}).get("staleness", 0)
    return " of rank 0 alone" if staleness else ""


def _held_out(history: History) -> list[str]:
    if not history.evaluations:
        return []
    last, *before = reversed(history.evaluations[-2:])
    lines = [_label("held out") + evaluated(last.step, last.values)]
    return lines + [_label() + evaluated(earlier.step, earlier.values) for earlier in before]


def _time(now: Present, history: History, of: Glyphs) -> list[str]:
    if not now.phases:
        return []
    whole = max(1e-12, sum(now.phases.values()))
    large = {name: seconds for name, seconds in now.phases.items() if seconds >= 0.01 * whole and name != "other"}
    large["other"] = whole - sum(large.values())
    lines = ["time of a step" + _whose(history)]
    for name, seconds in large.items():
        share = seconds / whole
        lines.append(f"  {name:<10}{duration(seconds):>8}{share:>6.0%}  {bar(share, 20, of)}")
    if now.hidden > 0.001 * now.seconds:
        lines.append(f"  {duration(now.hidden)} of sums went on while backward computed")
    return lines


def _bytes(now: Present, history: History, of: Glyphs) -> list[str]:
    total = sum(now.bytes.values())
    if not total:
        return []
    lines = [f"bytes of a step: {size(total)}, of rank 0"]
    for way, count in now.bytes.items():
        if count >= 0.005 * total:  # which is said to be 1%
            lines.append(f"  {way:<26}{size(count):>8}{count / total:>6.0%}  {bar(count / total, 12, of)}")
    if wanted := now.rows.get("wanted"):
        here = now.rows.get("used", 0) + now.rows.get("unchanged", 0)
        lines.append(f"  of {scaled(wanted)}rows wanted of other nodes {here / wanted:.0%} were here already")
    return lines


def _beside(left: list[str], right: list[str]) -> list[str]:
    height = max(len(left), len(right))
    padded = [lines + [""] * (height - len(lines)) for lines in (left, right)]
    return [f"{a:<50}{b}".rstrip() for a, b in zip(*padded, strict=True)]


def _changes(history: History) -> list[str]:
    latest = {text: step for step, text in history.notes}  # some are told again and again
    notes = sorted((step, text) for text, step in latest.items())
    said = [f"step {step:,}: {text}" for step, text in notes[-NOTES_SHOWN:]]
    if len(notes) > NOTES_SHOWN:
        said.insert(0, f"{len(notes) - NOTES_SHOWN:,} earlier notes")
    if saved := history.checkpoint:
        stood = f"training stood still for {duration(saved.get('seconds', math.nan))}"
        said.append(f"last checkpoint: step {saved['step']:,}; {stood}")
    if len(history.starts) > 1:
        last = history.starts[-1]
        again = f", {plural(last.lost, 'step')} done again" if last.lost else ""
        said.append(f"started {len(history.starts)} times, last from step {last.line['step']:,}{again}")
    return said


def _whole(rate: float) -> str:
    """Return a rate to three digits."""
    return f"{float(f'{rate:.3g}'):,.0f}" if rate >= 10 else f"{rate:.3g}"


def _label(text: str = "") -> str:
    return text.ljust(INDENT)


def _cut(line: str, width: int) -> str:
    line = tame(line)  # names are those of the user's program
    if shown_width(line) <= width:
        return line
    while shown_width(line) > width - 3:
        line = line[:-1]
    return line + "..."
