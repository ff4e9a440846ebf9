"""Following a run: a view that redraws itself on a terminal, plain lines elsewhere, until the run has ended."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from typing import TextIO

from hybridmpi.errors import STOPPED
from hybridmpi.watching.present import present, quiet
from hybridmpi.watching.reading import MetricsReader
from hybridmpi.watching.view import evaluated, plain, state, view
from hybridmpi.watching.words import glyphs

# A terminal looks for new lines so often; a log gets a line so often, while there is something new.
REDRAW_SECONDS, LINE_SECONDS = 0.5, 5.0


def follow(reader: MetricsReader, place: str, stream: TextIO) -> int:
    """Show a run on `stream` until it has ended; return the exit code: 75 if a signal stopped it, else 0. Local.

    A file that is not there yet is waited for.
    """
    for _ in _on_terminal(reader, place, stream) if stream.isatty() else _in_log(reader, stream):
        end = reader.history.end
        if end is not None:
            return STOPPED if end.get("stopped") else 0
        time.sleep(REDRAW_SECONDS)
    raise AssertionError


def _on_terminal(reader: MetricsReader, place: str, stream: TextIO) -> Iterator[None]:
    """Draw the view again and again, over the last one."""
    drawn, screen = 0, shutil.get_terminal_size()
    while True:
        reader.poll()
        lines, now = show(reader, place, stream), shutil.get_terminal_size()
        lines = fitting(lines, max(1, now.lines - 1))  # what has scrolled away cannot be drawn over
        # After the window has changed, lines lie elsewhere.
        up = "\x1b[2J\x1b[H" if now != screen else f"\x1b[{drawn}F" if drawn else ""
        stream.write(up + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        stream.flush()
        drawn, screen = len(lines), now
        yield


def fitting(lines: list[str], height: int) -> list[str]:
    """Return at most `height` lines: blank ones go first, then those before the last, which says how the run is. Local.

    A terminal of 24 lines has no room for everything.
    """
    blank = [number for number, line in enumerate(lines) if not line]
    gone = set(blank[max(0, len(blank) - max(0, len(lines) - height)) :])
    lines = [line for number, line in enumerate(lines) if number not in gone]
    return lines if len(lines) <= height else [*lines[: height - 1], lines[-1]]


def show(reader: MetricsReader, place: str, stream: TextIO) -> list[str]:
    """Return the view of what has been read, as wide as the terminal, or that there is nothing yet. Local."""
    if not reader.history.starts and not reader.history.step:
        return [f"waiting for {reader.file}: a job begins it when it has read its data (Ctrl-C ends)"]
    width = max(40, shutil.get_terminal_size().columns - 1)
    return view(reader.history, reader.age(), width, glyphs(stream.encoding), place)


def _in_log(reader: MetricsReader, stream: TextIO) -> Iterator[None]:
    """Write a line every few seconds, and what evaluations said and what was changed when it is."""
    told, step, silent, due = set(), -1, False, 0.0
    if not reader.poll():
        print(f"waiting for {reader.file}", file=stream, flush=True)
    while True:
        history = reader.history
        happened = [(found.step, evaluated(found.step, found.values)) for found in history.evaluations]
        happened += [(at, f"step {at:,}: {text}") for at, text in history.notes]
        for event in sorted(happened):
            if event not in told:
                print(event[1], file=stream)
                told.add(event)
        now = present(history)
        if now is not None and history.step != step and (time.monotonic() >= due or history.end is not None):
            print(plain(history), file=stream)
            step, due, silent = history.step, time.monotonic() + LINE_SECONDS, False
        if history.end is not None or (not silent and now is not None and quiet(history, reader.age(), now.seconds)):
            print(state(history, now, reader.age()), file=stream)
            silent = True
        stream.flush()
        yield
        reader.poll()
