"""Texts of bash that a user gives for a batch script: read from a file or as they are, and each checked by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from hybridmpi import environment
from hybridmpi.errors import UsageError
from hybridmpi.paths import expanded


def text_of(given: str | None, option: str) -> str:
    """Return the text of a file if there is one of that name, else what was given. Local.

    Raises UsageError for a file that is not there or holds no text, and for what is no whole piece of bash.
    """
    if given is None:
        return ""
    text = _read(given, option)
    check_bash(text, f"{option} {given if len(given) <= 60 else given[:60] + '...'}")
    return text


def _read(given: str, option: str) -> str:
    path = expanded(given, option) if given.startswith("~") and "\n" not in given else given
    try:
        if os.path.isfile(path):
            return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{option} {given}: that file is not UTF-8 ({error}); expected a text of bash") from error
    except OSError as error:
        raise UsageError(f"{option} {given}: cannot be read: {error.strerror}") from error
    if "/" in given and len(given.split()) == 1:
        raise UsageError(f"{option} {given}: no such file here; expected one, or a text of bash: 'source {given}'")
    return given


def check_bash(text: str, what: str) -> None:
    """Raise UsageError if bash cannot read `text`, or if it would take what follows for a part of it. Local.

    An open quote, brace, `if` or `&&` is an error to bash at the end of the text; a here-document without an end is
    only worth a warning to it, and a backslash there nothing.
    """
    last = text.rstrip("\n")
    if "\0" in text:
        raise UsageError(f"{what}: holds the character NUL, which is no text; leave it out")
    if (len(last) - len(last.rstrip("\\"))) % 2:
        raise UsageError(f"{what}: ends in a backslash, which joins the script's next line to it; end the line")
    if (bash := shutil.which("bash")) is None:
        return
    plain = {**environment.inherited(), "LC_ALL": "C"}
    found = subprocess.run([bash, "-n"], input=text.encode(), capture_output=True, timeout=30, env=plain)
    said = found.stderr.decode(errors="replace").strip()
    if found.returncode or said:
        raise UsageError(
            f"{what}: is no whole piece of bash by itself: what follows it would become a part of it:\n{said}"
        )
