"""What owners stage and sum: the bits of one row added after the other in the order of the clients."""

import numpy as np
import pytest

from hybridmpi import kernels
from hybridmpi.sparse.forms import Form, HalfForm
from hybridmpi.sparse.staging import Staging

ROWS, DIM = 90, 5
ENDS = np.array([0, 40, 41, ROWS])


def pushes(dtype, clients, seed=1):
    """Return (client, ids, values) of each client in two rounds, some of them empty, as they arrive."""
    random = np.random.default_rng(seed)
    found = []
    for client in clients:
        ids = random.permutation(ROWS)[: random.integers(0, 50)]
        values = random.standard_normal((len(ids), DIM)).astype(dtype)
        cut = len(ids) // 2
        found += [(client, ids[:cut], values[:cut]), (client, ids[cut:], values[cut:])]
    return found


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_are_those_of_all_rows_in_the_order_of_the_clients(dtype, lasting):
    scale_of = {0: 0.3, 2: 0.6, 7: 0.1}
    staging = Staging(DIM, np.dtype(dtype))
    for step in range(3):
        arrived = pushes(dtype, (7, 0, 2), seed=step)
        for client, ids, values in arrived:
            message = ids.copy(), values.copy()
            staging.add(client, *message, Form(np.dtype(dtype)), lasting)
            if not lasting:
                message[0][:], message[1][:] = 0, np.nan  # the slot's next message
        in_order = sorted(arrived, key=lambda push: push[0])
        ids, values = (np.concatenate(parts) for parts in list(zip(*in_order, strict=True))[1:])
        scale = np.concatenate([np.full(len(ids), scale_of[client]) for client, ids, _ in in_order]).astype(dtype)
        touched, sums = kernels.aggregate(ids, values, ROWS, scale)
        assert staging.used == len(ids)
        found = staging.sum(scale_of, ROWS, ENDS)
        for got, expected in zip(found, (touched, sums, [(ids < end).sum() for end in ENDS]), strict=True):
            np.testing.assert_array_equal(got, expected)
        assert staging.used == 0


def test_rows_that_came_in_16_bits_are_widened():
    staging, values = Staging(DIM, np.dtype("f4")), np.full((2, DIM), 0.5, np.float32)
    halves = np.empty((2, DIM), np.uint16)
    HalfForm("bfloat16").write(values, halves)
    staging.add(0, np.array([3, 1]), halves, HalfForm("bfloat16"), lasting=True)
    touched, sums, below = staging.sum({0: 0.5}, ROWS, ENDS[-1:])
    np.testing.assert_array_equal(touched, [1, 3])
    np.testing.assert_array_equal(sums, values / 2)
    assert below.tolist() == [2]


def test_a_sum_starts_from_zero():
    staging = Staging(DIM, np.dtype("f4"))
    staging.add(0, np.array([4]), np.full((1, DIM), -0.0, np.float32), Form(np.dtype("f4")))
    assert not np.signbit(staging.sum({0: 1.0}, ROWS, ENDS)[1]).any()


def test_no_rows_at_all():
    touched, sums, below = Staging(DIM, np.dtype("f4")).sum({}, ROWS, ENDS)
    assert touched.shape == (0,) and sums.shape == (0, DIM) and below.tolist() == [0, 0, 0, 0]
