"""Kernels one after the other, for one round and for many, without a call from Python for each."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from hybridmpi.dynamic.fusing.engine import compiled
from hybridmpi.dynamic.fusing.kernel import NAME

# The loop over kernels: of `%calls`, `%count` at least 1, on rows %first to %last or, of children, their own.
_CALLS = """
call:
  %i = phi i64 [ 0, %begin ], [ %next, %call ]
  %function.place = getelementptr [2 x i64], ptr %calls, i64 %i
  %function = load ptr, ptr %function.place, align 8
  %space.place = getelementptr i64, ptr %function.place, i64 1
  %space = load i64, ptr %space.place, align 8
  %vertices = icmp eq i64 %space, 0
  %from = select i1 %vertices, i64 %first, i64 %first.edge
  %to = select i1 %vertices, i64 %last, i64 %last.edge
  call void %function(i64 %from, i64 %to, ptr %table)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %call, label %done
"""

_SEQUENCE = f"""
define void @{NAME}(ptr %calls, i64 %count, i64 %first, i64 %last, i64 %first.edge, i64 %last.edge, ptr %table) {{
begin:
  br label %call
{_CALLS}
done:
  ret void
}}
"""


def _fields(record: str, names: list[str]) -> str:
    """Return the text that loads int64s one after the other; names in capitals are pointers."""
    lines = []
    for number, name in enumerate(names):
        lines.append(f"  %{name}.place = getelementptr i64, ptr %{record}, i64 {number}")
        lines.append(f"  %{name} = load {'ptr' if name in ('calls', 'table') else 'i64'}, ptr %{name}.place, align 8")
    return "\n".join(lines)


_ROUNDS = f"""
define i64 @{NAME}(ptr %batches, i64 %start, i64 %stop, i64 %step, ptr %plans) {{
entry:
  br label %batch
batch:
  %b = phi i64 [ %start, %entry ], [ %following, %done ]
  %end = icmp eq i64 %b, %stop
  br i1 %end, label %finished, label %look
look:
  %record = getelementptr [5 x i64], ptr %batches, i64 %b
{_fields("record", ["type", "first", "last", "first.edge", "last.edge"])}
  %plan = getelementptr [5 x i64], ptr %plans, i64 %type
{_fields("plan", ["calls", "count", "few", "few.edges", "table"])}
  %rows = sub i64 %last, %first
  %edges = sub i64 %last.edge, %first.edge
  %fits.rows = icmp sle i64 %rows, %few
  %fits.edges = icmp sle i64 %edges, %few.edges
  %fits = and i1 %fits.rows, %fits.edges
  br i1 %fits, label %begin, label %finished
begin:
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %call, label %done
{_CALLS}
done:
  %following = add i64 %b, %step
  br label %batch
finished:
  ret i64 %b
}}
"""


def sequence() -> Callable[[int, int, int, int, int, int, int], None]:
    """Return call(calls, count, first, last, first_edge, last_edge, table), which calls kernels one after the other.
    calls: the address of int64 [count, 2], for each kernel, at least one, its address and 0 where it goes through the
    first range of rows, 1 where through the second. Local."""
    return compiled(("sequence",), lambda: _SEQUENCE, ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7))


def rounds() -> Callable[[int, int, int, int, int], int]:
    """Return call(batches, start, stop, step, plans), which does sequences for one batch of rows after the other; it
    returns `stop`, or the number of the first batch that has too many rows. Local.

    batches: the address of int64 [*, 5]: type, first, last, first_edge, last_edge. plans: of int64 [types, 5]: calls
    and count as of a sequence, the most rows and the most children that it is for, the address of the table.
    """
    return compiled(("rounds",), lambda: _ROUNDS, ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5))
