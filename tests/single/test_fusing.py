"""Generated kernels do what numpy does, row by row, whatever lies where."""

import numpy as np
import pytest
from fusing_oracle import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmpi.dynamic.fusing import Apply, Load, Number, Operand, Store, as_text, compile_kernel, table_address

# What rounds as in numpy, to the bit.
EXACT = {"add": 2, "subtract": 2, "multiply": 2, "divide": 2, "negative": 1, "relu": 1, "positive": 1, "copy": 1}
BUFFERS, INDICES, ROWS = 4, 2, 7  # the last buffer lies within the first one


def addresses(buffers):
    return np.array([buffer.ctypes.data for buffer in buffers], np.int64)


def run(width, dtype, values, stores, first, last, buffers):
    table = addresses(buffers)
    compile_kernel(width, dtype, values, stores)(first, last, table_address(table))


@st.composite
def programs(draw):
    """Return width, dtype, values, stores: operands may overlap each other, and themselves from row to row."""
    width = draw(st.integers(1, 70))
    operand = st.builds(
        Operand,
        buffer=st.integers(0, BUFFERS - 1),
        stride=st.sampled_from((0, width, width + 3, 2 * width, 1)),
        column=st.sampled_from((0, 0, 1, width, 16)),
        index=st.sampled_from((None, *range(BUFFERS, BUFFERS + INDICES))),
    )
    values = [Load(draw(operand))]
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(("load", "number", "power", *EXACT)))
        earlier = st.integers(0, len(values) - 1)
        if kind == "load":
            values.append(Load(draw(operand)))
        elif kind == "number":
            values.append(Number(draw(st.floats(-2, 2))))
        elif kind == "power":
            values.append(Number(draw(st.sampled_from((2, 1, 0, -1, 0.5)))))
            values.append(Apply("power", (draw(earlier), len(values) - 1)))
        else:
            values.append(Apply(kind, tuple(draw(earlier) for _ in range(EXACT[kind]))))
    store = st.builds(Store, value=st.integers(0, len(values) - 1), operand=operand, add=st.booleans())
    stores = draw(st.lists(store, max_size=4))
    return width, draw(st.sampled_from((np.float32, np.float64))), tuple(values), tuple(stores)


def random_buffers(width, dtype, random):
    """Return all memory of `programs`, and their buffers and index arrays in it, in which rows come up repeatedly."""
    length = ROWS * 2 * width + 2 * width + 32
    memory = [random.standard_normal(size).astype(dtype) for size in (length + width, length, length)]
    indices = [random.integers(0, ROWS, ROWS) for _ in range(INDICES)]
    within = memory[0][width // 2 :][:length]
    return [*memory, *indices], [*memory, within, *indices]


@settings(max_examples=150, deadline=None)
@given(programs(), st.integers(0, 2), st.integers(0, ROWS), st.integers(0, 2**32 - 1))
def test_random_programs_do_what_numpy_does(program, first, last, seed):
    width, dtype, values, stores = program
    memories = []
    for way in (run, reference):
        memory, buffers = random_buffers(width, dtype, np.random.default_rng(seed))
        way(width, dtype, values, stores, first, last, buffers)
        memories.append(memory)
    for got, expected in zip(*memories, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_added_to_by_several_rows_gets_all_of_them(dtype):
    width, rows = 21, 9
    into, given_rows = np.zeros((2, width), dtype), np.arange(rows * width, dtype=dtype).reshape(rows, width)
    index = np.array([0, 1, 1, 0, 1, 1, 1, 0, 1])
    values, stores = (Load(Operand(0, width, 0)),), (Store(0, Operand(1, width, 0, 2), True),) * 2
    run(width, dtype, values, stores, 0, rows, [given_rows.reshape(-1), into.reshape(-1), index])
    np.testing.assert_array_equal(into, 2 * np.stack([given_rows[index == k].sum(axis=0) for k in (0, 1)]))


def test_a_row_sees_what_the_row_before_it_wrote():
    memory = np.ones(2 * 40, np.float32)
    # Row r + 1 becomes twice row r: each reads where the one before it wrote.
    values = (Load(Operand(0, 8, 0)), Apply("add", (0, 0)))
    run(8, np.float32, values, (Store(1, Operand(0, 8, 8)),), 0, 9, [memory])
    np.testing.assert_array_equal(memory.reshape(10, 8)[:, 0], 2.0 ** np.arange(10))


def test_the_same_program_is_the_same_kernel():
    program = (3, np.float32, (Load(Operand(0, 3, 0)),), (Store(0, Operand(1, 3, 0)),))
    kernel = compile_kernel(*program)
    assert compile_kernel(*program) is kernel
    assert compile_kernel(4, *program[1:]) is not kernel
    assert "masked.store" in as_text(*program) and "masked" not in as_text(3, np.float64, *program[2:])


READ = Load(Operand(0, 4, 0))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0, np.float32, (READ,), ()), "width 0"),
        ((4, np.int32, (READ,), ()), "kernels of int32"),
        ((4, np.float32, (READ, Apply("cosine", (0,))), ()), "unknown function 'cosine'"),
        ((4, np.float32, (READ, Apply("add", (0,))), ()), "add takes 2 arguments, not 1"),
        ((4, np.float32, (READ, Apply("tanh", (1,))), ()), "value 1 takes value 1"),
        ((4, np.float32, (READ, Apply("power", (0, 0))), ()), "has to be a Number"),
        ((4, np.float32, (READ,), (Store(1, Operand(0, 4, 0)),)), "store 0 writes value 1"),
        ((4, np.float32, (Load(Operand(0, 4, -1)),), ()), "negative place"),
    ],
)
def test_programs_that_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        compile_kernel(*arguments)


def test_a_table_has_to_be_int64():
    with pytest.raises(ValueError, match="int64"):
        table_address(np.zeros(3, np.float64))
