"""The LLVM text of a kernel: a loop over rows, in it a loop over blocks of columns, in it straight code."""

from __future__ import annotations

from typing import Any

from hybridmpi.dynamic.fusing.code import Code
from hybridmpi.dynamic.fusing.functions import FUNCTIONS
from hybridmpi.dynamic.fusing.program import Load, Number, Operand, Store, Value, check

NAME = "kernel"


class _Rows:
    """The addresses of a kernel: of buffers once for all rows, of operands' rows once for each row."""

    def __init__(self, code: Code):
        self.code = code
        self.bases: dict[int, str] = {}
        self.rows: dict[tuple[int, int, int | None], str] = {}

    def load_bases(self, operands: list[Operand]) -> None:
        """Read the base addresses of buffers and index arrays from the table."""
        indices = {operand.index for operand in operands if operand.index is not None}
        for number in sorted({operand.buffer for operand in operands} | indices):
            place = self.code.value(f"getelementptr i64, ptr %table, i64 {number}")
            self.bases[number] = self.code.value(f"load ptr, ptr {place}, align 8")

    def find_rows(self, operands: list[Operand]) -> None:
        """Compute where the row of each operand begins, for row %r; operands side by side share it."""
        code = self.code
        numbers = {None: "%r"}
        for operand in operands:
            if operand.index not in numbers:
                place = code.value(f"getelementptr i64, ptr {self.bases[operand.index]}, i64 %r")
                numbers[operand.index] = code.value(f"load i64, ptr {place}, align 8")
            key = (operand.buffer, operand.stride, operand.index)
            if key not in self.rows:
                offset = code.value(f"mul i64 {numbers[operand.index]}, {operand.stride}")
                base = self.bases[operand.buffer]
                self.rows[key] = code.value(f"getelementptr {code.scalar}, ptr {base}, i64 {offset}")

    def place(self, operand: Operand, column: str) -> str:
        """Return the address of the block of an operand's row that begins at `column`."""
        row = self.rows[operand.buffer, operand.stride, operand.index]
        block = self.code.value(f"getelementptr {self.code.scalar}, ptr {row}, i64 {column}")
        return self.code.value(f"getelementptr {self.code.scalar}, ptr {block}, i64 {operand.column}")


class _Block:
    """The code of one block of columns; of the last, narrower one only the first `columns` lanes are touched."""

    def __init__(self, code: Code, rows: _Rows, column: str, columns: int):
        self.code, self.rows, self.column = code, rows, column
        self.align = code.dtype.itemsize
        self.mask = None
        if columns < code.lanes:
            self.mask = code.constants("i1", [str(int(lane < columns)) for lane in range(code.lanes)])

    def load(self, operand: Operand) -> str:
        """Return what is there."""
        code, place = self.code, self.rows.place(operand, self.column)
        if self.mask is None:
            return code.value(f"load {code.vector}, ptr {place}, align {self.align}")
        function = f"{code.vector} @llvm.masked.load.{code.suffix}.p0"
        code.declare(f"{function}(ptr, i32, {code.bits}, {code.vector})")
        given = f"ptr {place}, i32 {self.align}, {code.bits} {self.mask}, {code.vector} zeroinitializer"
        return code.value(f"call {function}({given})")

    def store(self, operand: Operand, value: str) -> None:
        """Write a value."""
        code, place = self.code, self.rows.place(operand, self.column)
        if self.mask is None:
            code.line(f"store {code.vector} {value}, ptr {place}, align {self.align}")
            return
        function = f"void @llvm.masked.store.{code.suffix}.p0"
        code.declare(f"{function}({code.vector}, ptr, i32, {code.bits})")
        code.line(f"call {function}({code.vector} {value}, ptr {place}, i32 {self.align}, {code.bits} {self.mask})")

    def write(self, values: tuple[Value, ...], stores: tuple[Store, ...]) -> None:
        """Add the whole program: all that is read comes before all that is written."""
        code, names = self.code, []
        for value in values:
            if isinstance(value, Load):
                names.append(self.load(value.operand))
            elif isinstance(value, Number):
                names.append(code.number(value.value))
            elif value.name == "power":
                x, exponent = value.arguments
                names.append(FUNCTIONS["power"].write(code, names[x], values[exponent].value))
            else:
                names.append(FUNCTIONS[value.name].write(code, *(names[number] for number in value.arguments)))
        for store in stores:
            name = names[store.value]
            self.store(store.operand, code.operate("fadd", self.load(store.operand), name) if store.add else name)


def as_text(width: int, dtype: Any, values: tuple[Value, ...], stores: tuple[Store, ...]) -> str:
    """Return the LLVM text of a kernel, for `compile_kernel` and for reading. Local.

    Raises ValueError for a program that cannot be compiled.
    """
    check(width, values, stores)
    code = Code(dtype)
    rows = _Rows(code)
    operands = [value.operand for value in values if isinstance(value, Load)] + [store.operand for store in stores]
    whole = width - width % code.lanes  # columns in whole blocks

    code.label("entry")
    rows.load_bases(operands)
    code.line("%any = icmp slt i64 %first, %last")
    code.line("br i1 %any, label %row, label %done")
    code.label("row")
    code.line("%r = phi i64 [ %first, %entry ], [ %next.r, %row.done ]")
    rows.find_rows(operands)
    if whole:
        code.line("br label %block")
        code.label("block")
        code.line("%column = phi i64 [ 0, %row ], [ %next.column, %block ]")
        _Block(code, rows, "%column", code.lanes).write(values, stores)
        code.line(f"%next.column = add i64 %column, {code.lanes}")
        code.line(f"%more.columns = icmp slt i64 %next.column, {whole}")
        code.line("br i1 %more.columns, label %block, label %rest")
        code.label("rest")
    if whole < width:
        _Block(code, rows, str(whole), width - whole).write(values, stores)
    code.line("br label %row.done")
    code.label("row.done")
    code.line("%next.r = add i64 %r, 1")
    code.line("%more.rows = icmp slt i64 %next.r, %last")
    code.line("br i1 %more.rows, label %row, label %done")
    code.label("done")
    code.line("ret void")
    head = [*sorted(code.declared), "", f"define void @{NAME}(i64 %first, i64 %last, ptr %table) {{"]
    return "\n".join([*head, *code.lines, "}", ""])
