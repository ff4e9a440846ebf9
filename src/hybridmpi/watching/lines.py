"""Lines of a metrics file into what they say: of the many of a long run, as many as a curve needs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

# The last so many lines are all read: what a view of the present needs.
RECENT = 200

# Where a run has more steps than a curve shows, lines of steps are read that say more than their numbers.
_TELLING = (b'"skipped": true', b'"notes": ')
_KINDS = ("run", "step", "evaluation", "note", "checkpoint", "end")
# What lines say if they do: numbers or nothing, and sections of numbers.
_NUMBERS, _SECTIONS = ("time", "examples", "seconds", "hidden"), ("phases", "bytes", "rows")
_NOTHING: dict[str, float] = {}
# More steps than any run has, and fewer than numbers of 64 bits can count.
MOST = 1 << 53
# Numbers beyond this are none that a run has measured: sums of their squares are still numbers.
LARGEST = 1e100
_decoder = json.JSONDecoder()


def parse(text: bytes, stride: int, latest: bool = True) -> Iterator[dict[str, Any] | list[dict[str, Any]]]:
    """Yield what whole lines say, in their order: the object of a line, or a list of those of steps that follow each
    other. Local.

    `stride`: of the lines of steps every so manieth is read, those of steps that were skipped or followed by a change,
    and, of the `latest` lines of a file, the last RECENT. Lines that are no objects of metrics are left out: a job that
    is killed leaves a torn one.
    """
    data = np.frombuffer(text, np.uint8)
    ends = np.append(np.flatnonzero(data == ord("\n")), len(data))
    starts = np.concatenate([[0], ends[:-1] + 1])
    steps: list[dict[str, Any]] = []
    for row in _worth_reading(text, data, starts, ends, stride, RECENT * latest):
        said = record(text[starts[row] : ends[row]])
        if said is None:
            continue
        if said["kind"] == "step":
            steps.append(said)
            continue
        if steps:
            yield steps
            steps = []
        yield said
    if steps:
        yield steps


def _worth_reading(
    text: bytes, data: np.ndarray, starts: np.ndarray, ends: np.ndarray, stride: int, last: int
) -> list[int]:
    """Return which lines are read."""
    chosen = np.arange(len(starts)) % stride == 0
    chosen[max(0, len(starts) - last) :] = True
    if stride > 1:
        # {"kind": "step", as Metrics writes it: among its kinds, only this one has an s and an e there.
        letters = [data[np.minimum(starts + place, len(data) - 1)] for place in (10, 12)]
        chosen |= (letters[0] != ord("s")) | (letters[1] != ord("e"))
        for what in _TELLING:
            at = text.find(what)
            while at >= 0:
                chosen[np.searchsorted(ends, at)] = True
                at = text.find(what, at + 1)
    return np.flatnonzero(chosen).tolist()


def record(line: bytes) -> dict[str, Any] | None:
    """Return what a line says; None for one that is no object of metrics. Local.

    The border of what is read: behind it every record of a known kind has a `step`, and each field that is used is
    absent or of its type and within the bounds here. Texts can be encoded.
    """
    try:
        said, end = _decoder.raw_decode(text := line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if end != len(text.rstrip()) or not isinstance(said, dict) or not isinstance(said.get("kind"), str):
        return None
    if said["kind"] not in _KINDS:
        return said
    if "\\ud" in text:  # halves of characters, which no output takes
        said = _whole(said)
    if None in said.values():
        said = {name: value for name, value in said.items() if value is not None}
    if not (_is_step(said.get("step")) and all(map(_is_measure, map(said.get, _NUMBERS)))):
        return None
    return said if _FIELDS[said["kind"]](said) else None


def _is_measure(value: Any) -> bool:
    """Return whether a value is absent, or a number whose sums over a run and whose squares are numbers too."""
    return value is None or (isinstance(value, (int, float)) and abs(value) <= LARGEST)


def _is_number(value: Any) -> bool:
    """Return whether a value is a measure, or a float that says that it is no number or infinite."""
    return _is_measure(value) or (isinstance(value, float) and not math.isfinite(value))


def _is_step(value: Any) -> bool:
    return type(value) is int and -MOST <= value <= MOST


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _is_section(value: Any) -> bool:
    return type(value) is dict and all(number is not None and _is_measure(number) for number in value.values())


def _is_of_step(said: dict[str, Any]) -> bool:
    if not all(_is_section(said.get(section, _NOTHING)) for section in _SECTIONS):
        return False
    notes, skipped = said.get("notes", ()), said.get("skipped", False)
    of_texts = isinstance(notes, (list, tuple)) and all(isinstance(note, str) for note in notes)
    return of_texts and isinstance(skipped, bool) and _is_number(said.get("loss"))


def _is_of_run(said: dict[str, Any]) -> bool:
    """Return whether what a run says of its job has sections, and in them what is used."""
    job = said.get("job", {})
    if not isinstance(job, dict) or not all(isinstance(section, dict) for section in job.values()):
        return False
    training, kind, host = job.get("training", {}), job.get("model", {}).get("kind", ""), said.get("host", "")
    counts = [said.get(name, 0) for name in ("compute_ranks", "servers", "nodes")] + [training.get("steps", 0)]
    return all(map(_is_count, counts)) and isinstance(kind, str) and isinstance(host, str)


def _is_of_evaluation(said: dict[str, Any]) -> bool:
    for name in [name for name, value in said.items() if isinstance(value, (int, float)) and not _is_number(value)]:
        del said[name]  # of what a kind of job tells, one number that is none says nothing of the others
    return True


_FIELDS = {
    "step": _is_of_step,
    "run": _is_of_run,
    "evaluation": _is_of_evaluation,
    "note": lambda said: isinstance(said.get("text", ""), str),
    "checkpoint": lambda said: True,
    "end": lambda said: True,
}


def _whole(said: Any) -> Any:
    """Return a JSON value whose texts can be encoded."""
    if isinstance(said, str):
        return said.encode("utf-8", "replace").decode("utf-8")
    if isinstance(said, list):
        return [_whole(value) for value in said]
    return {_whole(key): _whole(value) for key, value in said.items()} if isinstance(said, dict) else said
