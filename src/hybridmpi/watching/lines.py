"""Lines of a metrics file into what they say: of the many of a long run, as many as a curve needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

# The last so many lines are all read: what a view of the present needs.
RECENT = 200

# Where a run has more steps than a curve shows, lines of steps are read that say more than their numbers.
_TELLING = (b'"skipped": true', b'"notes": ')
_KINDS = ("run", "step", "evaluation", "note", "checkpoint", "end")
# What lines say if they do: numbers or nothing, and sections of numbers.
_NUMBERS, _SECTIONS = ("time", "loss", "examples", "seconds", "hidden"), ("phases", "bytes", "rows")
_SECTION_TYPES = {float, int, bool}
_TYPES = {*_SECTION_TYPES, type(None)}
_NOTHING: dict[str, float] = {}
# More steps than any run has, and fewer than numbers of 64 bits can count.
MOST = 1 << 53
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
        said = _object(text[starts[row] : ends[row]])
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


def _object(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line, or None."""
    try:
        said, end = _decoder.raw_decode(text := line.decode("utf-8"))
    except ValueError:
        return None
    if end != len(text.rstrip()) or not isinstance(said, dict) or not isinstance(said.get("kind"), str):
        return None
    if said["kind"] not in _KINDS:
        return said
    sane = isinstance(said.get("step"), int) and -MOST <= said["step"] <= MOST
    sane = sane and {*map(type, map(said.get, _NUMBERS))} <= _TYPES
    if said["kind"] == "step":
        for section in _SECTIONS:
            values = said.get(section, _NOTHING)
            sane = sane and type(values) is dict and {*map(type, values.values())} <= _SECTION_TYPES
    elif said["kind"] == "run":
        sane = sane and _is_job(said.get("job", {}))
    return said if sane else None


def _is_job(job: Any) -> bool:
    """Return whether what a run says of its job has sections, and a number of steps if any."""
    if not isinstance(job, dict) or not all(isinstance(section, dict) for section in job.values()):
        return False
    return isinstance(job.get("training", {}).get("steps", 0), int)
