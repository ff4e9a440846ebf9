"""Products of a few rows with a matrix as LLVM text: BLAS copies the matrix into an order of its own for every product,
which takes longer than a product of a few rows.

Two loops. `across`: out(i, :) = sum over j of a(i, j) b(j, :), vectors along the columns of b; for rows times a matrix
[k, n], and for gradients, a.T b. `along`: out(i, n) = sum over k of a(i, k) b(n, k), vectors along k; for rows times
the transpose of a matrix [n, k], which so is read in the order in which it lies. Both keep a tile of the result in
registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridmpi.dynamic.fusing.code import Code

NAME = "kernel"
# Vectors of a tile, of 32 registers of AVX-512: the rest holds what is read.
_TILE = 24


@dataclass(frozen=True)
class Matrix:
    """Where a matrix lies: the number of its base address in the table, and in elements the step from one row to the
    next and the first column."""

    number: int
    stride: int
    column: int = 0


@dataclass(frozen=True)
class Product:
    """Rows of `a` [*, inputs] times `b` into `out` [*, outputs], for rows first <= r < last of both.

    turned: b is [outputs, inputs], else [inputs, outputs].
    """

    a: Matrix
    b: Matrix
    out: Matrix
    inputs: int
    outputs: int
    turned: bool


@dataclass(frozen=True)
class Gradient:
    """The sum over rows first <= r < last of a[r, i] b[r, j], into `out` [rows, columns]; add: to what is there."""

    a: Matrix
    b: Matrix
    out: Matrix
    rows: int
    columns: int
    add: bool


def as_text(dtype: Any, product: Product | Gradient) -> str:
    """Return the LLVM text of a kernel(first, last, table). Local."""
    dtype = np.dtype(dtype)
    code = Code(dtype, lanes=64 // dtype.itemsize)
    text = _Text(code, product)
    if isinstance(product, Gradient):
        text.gradient(product)
    elif product.turned:
        text.product(product, text.along)
    else:
        text.product(product, text.across)
    return "\n".join([*sorted(code.declared), "", *code.lines, ""])


class _Text:
    """The functions of one kernel: a tile of so many rows of the result each, and the kernel that calls them."""

    def __init__(self, code: Code, product: Product | Gradient) -> None:
        self.code, self._labels = code, 0
        # Rows of tiles. Along, each sum over a vector's lanes costs as much as a few products: larger ones do not pay.
        self.tiles = (1, 2, 3, 4) if isinstance(product, Product) and product.turned else (1, 2, 3, 4, 8)
        self.size = code.dtype.itemsize
        self.a, self.b, self.out = product.a, product.b, product.out

    def label(self, what: str) -> str:
        """Return a fresh label."""
        self._labels += 1
        return f"{what}{self._labels}"

    def at(self, base: str, *offsets: str | int) -> str:
        """Return an address so many elements behind another."""
        for offset in offsets:
            if offset != 0:
                base = self.code.value(f"getelementptr {self.code.scalar}, ptr {base}, i64 {offset}")
        return base

    def times(self, value: str, factor: int) -> str:
        """Return value * factor."""
        return self.code.value(f"mul i64 {value}, {factor}")

    def load(self, place: str, lanes: int) -> str:
        """Return the first `lanes` elements from an address, then zeros."""
        code = self.code
        if lanes == code.lanes:
            return code.value(f"load {code.vector}, ptr {place}, align {self.size}")
        function = f"{code.vector} @llvm.masked.load.{code.suffix}.p0"
        code.declare(f"{function}(ptr, i32, {code.bits}, {code.vector})")
        given = f"ptr {place}, i32 {self.size}, {code.bits} {self.mask(lanes)}, {code.vector} zeroinitializer"
        return code.value(f"call {function}({given})")

    def store(self, value: str, place: str, lanes: int) -> None:
        """Write the first `lanes` elements."""
        code = self.code
        if lanes == code.lanes:
            code.line(f"store {code.vector} {value}, ptr {place}, align {self.size}")
            return
        function = f"void @llvm.masked.store.{code.suffix}.p0"
        code.declare(f"{function}({code.vector}, ptr, i32, {code.bits})")
        code.line(
            f"call {function}({code.vector} {value}, ptr {place}, i32 {self.size}, {code.bits} {self.mask(lanes)})"
        )

    def mask(self, lanes: int) -> str:
        """Return the constant that lets the first lanes through."""
        return self.code.constants("i1", [str(int(lane < lanes)) for lane in range(self.code.lanes)])

    def repeated(self, place: str) -> str:
        """Return the element at an address in all lanes."""
        code = self.code
        scalar = code.value(f"load {code.scalar}, ptr {place}, align {self.size}")
        one = code.value(f"insertelement {code.vector} poison, {code.scalar} {scalar}, i32 0")
        lanes = f"<{code.lanes} x i32> zeroinitializer"
        return code.value(f"shufflevector {code.vector} {one}, {code.vector} poison, {lanes}")

    def multiply_add(self, a: str, b: str, c: str) -> str:
        """Return a b + c."""
        return self.code.call(f"llvm.fmuladd.{self.code.suffix}", a, b, c)

    # -- loops -----------------------------------------------------------------------------------------------------

    def loop(
        self, first: str | int, last: str | int, step: int, carried: list[tuple[str, str]], body: Any
    ) -> list[str]:
        """Add a loop that runs at least once: body(counter, values) returns the next values. `carried`: the type and
        the first of each; return the last ones."""
        code = self.code
        before, top, end = self.label("enter"), self.label("loop"), self.label("end")
        code.line(f"br label %{before}")
        code.label(before)
        code.line(f"br label %{top}")
        code.label(top)
        counter, following = f"%i.{top}", f"%next.{top}"
        latch = self.label("latch")
        code.line(f"{counter} = phi i64 [ {first}, %{before} ], [ {following}, %{latch} ]")
        names, place = [f"%c{n}.{top}" for n in range(len(carried))], len(code.lines)
        values = body(counter, names)
        phis = [
            f"  {name} = phi {kind} [ {start}, %{before} ], [ {value}, %{latch} ]"
            for name, (kind, start), value in zip(names, carried, values, strict=True)
        ]
        code.lines[place:place] = phis
        code.line(f"br label %{latch}")
        code.label(latch)
        code.line(f"{following} = add i64 {counter}, {step}")
        code.line(f"%more.{top} = icmp slt i64 {following}, {last}")
        code.line(f"br i1 %more.{top}, label %{top}, label %{end}")
        code.label(end)
        return list(values)

    def across(self, name: str, rows: int, steps: tuple[int, int], width: int, add: bool) -> None:
        """Add a function (a, b, out, count): rows of the result, all columns. steps: elements from a(i, j) to the next
        i, and to the next j."""
        code, lanes = self.code, self.code.lanes
        code.lines.append(f"define internal void @{name}(ptr %a, ptr %b, ptr %out, i64 %count) {{")
        vectors = -(-width // lanes)
        blocks = -(-vectors // (_TILE // rows))
        wide = -(-vectors // blocks)  # vectors of a block: all of about the same size
        whole = width // (wide * lanes)

        def block(column: str | int, widths: list[int]) -> None:
            carried = [(code.vector, "zeroinitializer")] * (rows * len(widths))

            def body(j: str, sums: list[str]) -> list[str]:
                row = self.at("%b", self.times(j, self.b.stride), column)
                right = [self.load(self.at(row, n * lanes), count) for n, count in enumerate(widths)]
                found, left = [], self.at("%a", self.times(j, steps[1]))
                for i in range(rows):
                    factor = self.repeated(self.at(left, i * steps[0]))
                    found += [
                        self.multiply_add(factor, value, sums[i * len(widths) + n]) for n, value in enumerate(right)
                    ]
                return found

            sums = self.loop(0, "%count", 1, carried, body)
            for i in range(rows):
                row = self.at("%out", i * self.out.stride, column)
                for n, count in enumerate(widths):
                    place, value = self.at(row, n * lanes), sums[i * len(widths) + n]
                    if add:
                        value = code.operate("fadd", self.load(place, count), value)
                    self.store(value, place, count)

        code.label("entry")
        if whole:

            def body(column: str, _: list[str]) -> list[str]:
                block(column, [lanes] * wide)
                return []

            self.loop(0, whole * wide * lanes, wide * lanes, [], body)
        rest = width - whole * wide * lanes
        if rest:
            block(whole * wide * lanes, [min(lanes, rest - n) for n in range(0, rest, lanes)])
        code.line("ret void")
        code.lines.append("}")

    def along(self, name: str, rows: int, steps: tuple[int, int], width: int, add: bool) -> None:
        """Add a function (a, b, out, count) for `count` columns of a."""
        code, lanes = self.code, self.code.lanes
        code.lines.append(f"define internal void @{name}(ptr %a, ptr %b, ptr %out, i64 %count) {{")
        inputs = self._inputs
        whole = inputs - inputs % lanes
        high = min(20 // (rows + 1), 8, width)  # rows of b at a time

        def block(n: str | int, count: int) -> None:
            right = self.at("%b", self.times(str(n), self.b.stride))

            def add_products(k: str | int, width: int, sums: list[str]) -> list[str]:
                others = [self.load(self.at(right, m * self.b.stride, k), width) for m in range(count)]
                found = []
                for i in range(rows):
                    value = self.load(self.at("%a", i * steps[0], k), width)
                    found += [self.multiply_add(value, other, sums[i * count + m]) for m, other in enumerate(others)]
                return found

            sums = ["zeroinitializer"] * (rows * count)
            if whole:
                carried = [(code.vector, value) for value in sums]
                sums = self.loop(0, whole, lanes, carried, lambda k, values: add_products(k, lanes, values))
            if whole < inputs:
                sums = add_products(whole, inputs - whole, sums)
            function = f"{code.scalar} @llvm.vector.reduce.fadd.{code.suffix}"
            code.declare(f"{function}({code.scalar}, {code.vector})")
            for i in range(rows):
                row = self.at("%out", i * self.out.stride, n)
                for m in range(count):
                    given = f"{code.scalar} -0.0, {code.vector} {sums[i * count + m]}"
                    total = code.value(f"call reassoc {function}({given})")
                    code.line(f"store {code.scalar} {total}, ptr {self.at(row, m)}, align {self.size}")

        code.label("entry")
        full = width - width % high

        def body(n: str, _: list[str]) -> list[str]:
            block(n, high)
            return []

        self.loop(0, full, high, [], body)
        if full < width:
            block(full, width - full)
        code.line("ret void")
        code.lines.append("}")

    # -- kernels ---------------------------------------------------------------------------------------------------

    def product(self, product: Product, tile: Any) -> None:
        """Add the kernel of a product."""
        self._inputs = product.inputs
        for rows in self.tiles:
            tile(f"tile{rows}", rows, (self.a.stride, 1), product.outputs, False)
        self.kernel("%first", "%last", self.a.stride, str(product.inputs))

    def gradient(self, gradient: Gradient) -> None:
        """Add the kernel of a gradient."""
        for rows in self.tiles:
            self.across(f"tile{rows}", rows, (1, self.a.stride), gradient.columns, gradient.add)
        self.kernel("0", str(gradient.rows), 1, "%count")

    def kernel(self, first: str, last: str, step: int, count: str) -> None:
        """Add the function that goes through the rows of the result, from `first` to `last`: the largest tiles as
        long as there are as many, then the rest."""
        code = self.code
        code.lines.append(f"define void @{NAME}(i64 %first, i64 %last, ptr %table) {{")
        code.label("entry")
        code.line("%count = sub i64 %last, %first")
        code.line("%any = icmp sgt i64 %count, 0")
        code.line("br i1 %any, label %begin, label %done")
        code.label("begin")
        bases = []
        for matrix in (self.a, self.b, self.out):
            place = code.value(f"getelementptr i64, ptr %table, i64 {matrix.number}")
            bases.append(self.at(code.value(f"load ptr, ptr {place}, align 8"), matrix.column))
        a, b, out = bases
        if count == "%count":  # a gradient: the rows at work are those of a and b
            a = self.at(a, self.times("%first", self.a.stride))
            b = self.at(b, self.times("%first", self.b.stride))
        code.line("br label %row")
        code.label("row")
        code.line(f"%r = phi i64 [ {first}, %begin ], " + ", ".join(f"[ %r{n}, %do{n} ]" for n in self.tiles))
        code.line(f"%left = sub i64 {last}, %r")
        left = self.at(a, self.times("%r", step))
        place = self.at(out, self.times("%r", self.out.stride))
        most = self.tiles[-1]
        cases = " ".join(f"i64 {n}, label %do{max(rows for rows in self.tiles if rows <= n)}" for n in range(1, most))
        code.line(f"switch i64 %left, label %do{most} [ i64 0, label %done {cases} ]")
        for rows in self.tiles:
            code.label(f"do{rows}")
            code.line(f"call void @tile{rows}(ptr {left}, ptr {b}, ptr {place}, i64 {count})")
            code.line(f"%r{rows} = add i64 %r, {rows}")
            code.line("br label %row")
        code.label("done")
        code.line("ret void")
        code.lines.append("}")
