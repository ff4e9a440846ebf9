"""Values of sbatch's options: what can be, and how a value is written into a script."""

from __future__ import annotations

import re

from hybridmpi.errors import UsageError
from hybridmpi.slurm.known import Value

_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<dhours>\d+)(?::(?P<dminutes>\d+))?(?::(?P<dseconds>\d+))?"
    r"|(?P<hours>\d+):(?P<hminutes>\d+):(?P<hseconds>\d+)|(?P<minutes>\d+)(?::(?P<seconds>\d+))?)",
    re.ASCII,
)
_UNLIMITED = ("UNLIMITED", "INFINITE")
_PLAIN = re.compile(r"[\w.,:=@%+/*?!&|()\[\]{}<>~^-]+", re.ASCII)
"""What sbatch reads as it stands: no space, quote, backslash or #."""


def seconds_of(time: str, place: str) -> int | None:
    """Return the seconds of a time as Slurm writes it, None for no limit. Local.

    Raises UsageError, which names `place`, for what is no time: also for 1:99, which is not an hour and 39 minutes.
    """
    if time.upper() in _UNLIMITED:
        return None
    match = _TIME.fullmatch(time)
    parts = {name: int(text) for name, text in match.groupdict().items() if text} if match else {}
    small = {name: number for name, number in parts.items() if name not in ("days", "hours", "minutes")}
    if not parts or any(number >= (24 if name == "dhours" else 60) for name, number in small.items()):
        raise UsageError(
            f"{place} {time}: expected minutes, minutes:seconds, hours:minutes:seconds, days-hours or "
            "days-hours:minutes:seconds, such as 90, 4:00:00 or 2-12"
        )
    units = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
    total = sum(number * next(units[unit] for unit in units if name.endswith(unit)) for name, number in parts.items())
    if total == 0:
        raise UsageError(f"{place} {time}: expected more than nothing, such as 4:00:00")
    return total


def check_value(name: str, value: str | None, place: str) -> None:
    """Raise UsageError, which names `place`, unless sbatch's option `name` can have `value` (None: none). Local."""
    from hybridmpi.slurm.known import OPTIONS

    kind = OPTIONS[name]
    if kind is Value.FLAG and value is not None:
        raise UsageError(f"{place}: sbatch's --{name} takes no value")
    if kind not in (Value.FLAG, Value.MAYBE) and not value:
        raise UsageError(f"{place}: sbatch's --{name} needs a value: {name}=...")
    if value is None:
        return
    if wrong := next((c for c in value if not c.isprintable() and c != "\t"), None):
        raise UsageError(f"{place}: {wrong!r} cannot stand in a line of a batch script; leave it out")
    if kind is Value.TIME:
        seconds_of(value, place)
    elif kind is Value.COUNT and not re.fullmatch(r"0*[1-9]\d*", value, re.ASCII):
        raise UsageError(f"{place}: expected a whole number from 1 up")
    elif kind is Value.MEMORY and not re.fullmatch(r"\d+[KMGT]?B?", value, re.ASCII | re.IGNORECASE):
        raise UsageError(
            f"{place}: expected a number with K, M, G or T (M if there is none), such as 64G; 0: all there is"
        )
    elif kind is Value.NODES and not re.fullmatch(r"0*[1-9]\d*(-[1-9]\d*)?", value, re.ASCII):
        raise UsageError(f"{place}: expected a number of nodes from 1 up")


def directive(name: str, value: str | None) -> str:
    """Return the line of a batch script that gives sbatch the option `name`. Local, pure.

    sbatch splits lines at spaces, ends them at #, and knows quotes, in which a backslash still takes the next character
    as it is.
    """
    if value is None:
        return f"#SBATCH --{name}"
    if not _PLAIN.fullmatch(value):
        value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"#SBATCH --{name}={value}"
