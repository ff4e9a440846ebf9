"""Random numbers are a function of (seed, step, rank, purpose, use) and of nothing else."""

import itertools

import pytest

from hybridmpi.autograd import draws
from hybridmpi.errors import UsageError


def numbers(seed, step, rank, purpose="dropout", shared=False, uses=1):
    draws.begin_step(seed, step, rank)
    return [tuple(draws.generator(purpose, shared).random(3)) for _ in range(uses)]


def test_same_key_same_numbers_and_every_part_of_the_key_matters():
    assert numbers(1, 2, 3) == numbers(1, 2, 3)
    seen = [tuple(numbers(*key)) for key in itertools.product((0, 1), repeat=3)]
    seen.append(tuple(numbers(0, 0, 0, purpose="candidates")))
    seen.append(tuple(numbers(0, 0, 0, shared=True)))
    assert len(set(seen)) == len(seen)


def test_calls_within_a_step_differ_and_purposes_do_not_disturb_each_other():
    first, second = numbers(1, 1, 0, uses=2)
    assert first != second
    draws.begin_step(1, 1, 0)
    draws.generator("other").random(1000)
    assert tuple(draws.generator("dropout").random(3)) == first
    assert tuple(draws.generator("dropout").random(3)) == second


def test_shared_draws_leave_the_rank_out():
    assert numbers(1, 5, 0, shared=True) == numbers(1, 5, 7, shared=True)
    assert numbers(1, 5, 0, shared=True) != numbers(1, 6, 0, shared=True)


def test_another_step_can_be_looked_at():
    draws.begin_step(1, 4, 2)
    here = tuple(draws.generator("x").random(3))
    with draws.peek():
        assert tuple(draws.generator("x").random(3)) == here
    with draws.peek(2):
        later = [tuple(draws.generator("x").random(3)) for _ in range(2)]
    second = tuple(draws.generator("x").random(3))
    draws.begin_step(1, 6, 2)
    assert [tuple(draws.generator("x").random(3)) for _ in range(2)] == later
    draws.begin_step(1, 4, 2)
    assert [tuple(draws.generator("x").random(3)) for _ in range(2)] == [here, second]


def test_outside_a_step_is_an_error(monkeypatch):
    monkeypatch.setattr(draws, "_current", None)
    with pytest.raises(UsageError, match="begin_step"), draws.peek():
        pass
    with pytest.raises(UsageError, match="begin_step"):
        draws.generator("dropout")
    with pytest.raises(UsageError, match="begin_step: seed = -1 .*at least 0"):
        draws.begin_step(-1, 0, 0)
