"""Options of the Python API: every one, found by introspection, is tried with every kind of wrong value."""

import enum
import importlib
import inspect
import math
import pkgutil
import typing
from dataclasses import fields, is_dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridmpi as hm
from hybridmpi.autograd import draws
from hybridmpi.data import GeneratedClicks, training_batches
from hybridmpi.errors import UsageError
from hybridmpi.field_types import (
    Options,
    Range,
    argument,
    argument_types,
    checked,
    checks_arguments,
    described,
    hints_of,
    is_option_type,
    place_of,
)
from hybridmpi.optim import SGD, Adagrad, Adam, Momentum, Optimizer
from hybridmpi.training.dense import DenseOptions
from hybridmpi.training.job import AllReduceSection, CheckpointSection, SparseSection, TrainingSection, WorldSection
from hybridmpi.training.tables import SparseOptions

MODULES = [importlib.import_module(f"hybridmpi.{name}") for name in ("data", "dynamic", "graphs", "nn", "optim")]
MODELS = [
    importlib.import_module(f"hybridmpi.models.{found.name}")
    for found in pkgutil.iter_modules(importlib.import_module("hybridmpi.models").__path__)
]
# What no option may be taken for; and what some are.
NEVER = [math.nan, np.float32("nan"), 1j, b"1", object(), int, np.array([1, 2]), 10**400]
WRONG = [
    *NEVER, math.inf, -math.inf, -1, -1.5, 0.5, True, np.True_, "x", "", None, (), (0.5,), ["x", 1], {}, {"x": "x"},
    1 << 64, 1e39, 1e-46, 0.99999999, np.array(3),
]  # fmt: skip
SIMPLE = (int, float, bool)


def public():
    """Yield the public classes and functions, but for those of single operations, which take arrays."""
    for name in hm.__all__:
        if callable(found := getattr(hm, name)):
            yield found
    for module in MODULES:
        for name in module.__all__:
            if callable(found := getattr(module, name)):
                yield found
    for module in MODELS:
        yield from (c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__)


def entrances():
    """Yield (function, its name) of everything public that takes options: constructors, functions, methods."""
    found = {}
    for one in public():
        if not inspect.isclass(one):
            found[one] = None
        elif is_dataclass(one) or issubclass(one, (tuple, enum.Enum)) or getattr(one, "_is_protocol", False):
            continue
        else:
            for name, method in vars(one).items():
                if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
                    found[method] = None
    return list(found)


def is_checked(function):
    """Return whether the outermost wrapper of a function is that of @checks_arguments."""
    return getattr(function, "__code__", None) is checks_arguments(public).__code__


def options_classes():
    return sorted(
        {c for c in public() if inspect.isclass(c) and issubclass(c, (Options, Optimizer))}, key=lambda c: c.__name__
    )


def guarded():
    """Return (function, argument, type) of every argument that is checked."""
    checking = [f for f in entrances() if is_checked(f)]
    return [(f, name, hint) for f in checking for name, hint in argument_types(f).items()]


def accepted(hint, value):
    """Return whether `checked` takes a value for a type, and that what it returns is plain Python."""
    try:
        found = checked(value, hint, "Place.name", python=True)
    except UsageError as error:
        said = str(error)
        assert said.startswith("Place.name = ") and "; expected " in said and "\n" not in said and len(said) < 600, said
        return False
    parts = found if isinstance(found, tuple) else (*found, *found.values()) if isinstance(found, dict) else (found,)
    for part in parts:
        assert part is None or type(part) in (int, float, bool, str) or isinstance(part, Options), (hint, value, part)
    return True


# What the package makes itself, of numbers that are no options.
NOT_OPTIONS = {"Report.__init__", "Node.__init__"}


def test_every_number_and_truth_value_of_a_public_constructor_is_checked():
    """A new one is found here: give it a type of hybridmpi.field_types, and the function @checks_arguments."""
    for function in entrances():
        if function.__name__ != "__init__" or is_checked(function):
            continue
        for name, hint in argument_types(function).items():
            choices = [hint, *typing.get_args(hint)]
            known = function.__qualname__ in NOT_OPTIONS
            assert known or not any(choice in SIMPLE for choice in choices), f"{function.__qualname__}({name}: {hint})"


def test_there_are_many():
    names = {place_of(function, name) for function, name, _ in guarded()}
    assert {"Trainer.clip", "Trainer.fit: steps", "Linear.inputs", "Streams.steps", "World.servers"} <= names
    assert {"SparseOptions", "DenseOptions", "CacheOptions", "Batching", "Adam"} <= {
        c.__name__ for c in options_classes()
    }
    assert len(names) > 100


@pytest.mark.parametrize("cls", options_classes(), ids=lambda cls: cls.__name__)
def test_every_field_of_every_class_of_options_refuses_what_is_none(cls):
    needed = {"rate": 0.1, "rows": 3}
    good = cls(**{f.name: needed[f.name] for f in fields(cls) if f.name in needed})
    for field in fields(cls):
        hint = hints_of(cls)[field.name]
        assert is_option_type(hint), f"{cls.__name__}.{field.name}: {hint}"
        for value in WRONG:
            if accepted(hint, value):
                assert not any(value is one for one in NEVER), (cls, field.name, value)
                continue
            with pytest.raises(UsageError, match=rf"^{cls.__name__}\.{field.name} = .*; expected "):
                replace(good, **{field.name: value})


@pytest.mark.parametrize(
    "entrance", guarded(), ids=lambda part: f"{part[0].__module__}.{part[0].__qualname__}({part[1]})"
)
def test_every_argument_refuses_what_is_none(entrance):
    function, name, hint = entrance
    refused = [value for value in WRONG if not accepted(hint, value)]
    assert len(refused) > 10 and all(any(value is one for one in refused) for value in NEVER)
    # The check comes before anything is looked at: of the rest only what is checked too need be right.
    known, others = argument_types(function), {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            others[parameter.name] = example(known[parameter.name]) if parameter.name in known else None
    for value in refused:
        with pytest.raises(UsageError) as caught:
            function(**others | {name: value})
        assert str(caught.value).startswith(place_of(function, name) + " = "), caught.value


def example(hint):
    """Return a value that a type takes."""
    tried = [1, 0.5, "cyclic", True, (1,), {"x": 1}, "x", None, SGD(1)]
    return next(value for value in tried if accepted(hint, value))


def test_numbers_of_numpy_are_numbers():
    options = SparseOptions(parts=np.int64(3), adapt_every=np.uint8(5), prefetch=np.False_)
    assert options == SparseOptions(parts=3, adapt_every=5, prefetch=False) and type(options.parts) is int
    assert type(options.prefetch) is bool
    rule = Adam(np.float32(0.5), beta1=np.float64(0.5))
    assert (rule.rate, rule.beta1, type(rule.rate)) == (0.5, 0.5, float) and SGD(Fraction(1, 4)).rate == 0.25
    assert DenseOptions(supernodes=["a", "b"]).supernodes == ("a", "b")
    assert math.copysign(1, Adagrad(1, initial=-0.0).initial) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SparseOptions(prefetch="no"), 'SparseOptions.prefetch = "no" (a string); expected True or False'),
        (lambda: SparseOptions(adapt_every=1.5), "SparseOptions.adapt_every = 1.5 (a fraction); expected a whole"),
        (lambda: DenseOptions(overlap="no"), 'DenseOptions.overlap = "no" (a string); expected True or False'),
        (lambda: DenseOptions(supernodes="node1"), "expected a tuple or a list of strings"),
        (lambda: SparseOptions(cache=3), "SparseOptions.cache = 3 (a whole number); expected CacheOptions(...)"),
        (lambda: SGD(1e39), "it is too large for float32, in which it is used"),
        (lambda: Adagrad(1, initial=1e-46), "it is too small for float32"),
        (lambda: Adagrad(1, initial=0, epsilon=1e-46), "Adagrad.epsilon = 1e-46"),
        (lambda: Adagrad(1, initial=0, epsilon=1e-30), "Adagrad.epsilon = 1e-30"),
        (lambda: Momentum(1, 0.99999999), "as float32, in which it is used, it is 1"),
        (lambda: Adam(1, beta2=0.999999999), "as float32, in which it is used, it is 1"),
        (lambda: Adam(3e38), "too large for float32; expected a smaller rate"),
        (lambda: SparseOptions(parts=1 << 20), "expected a whole number, at least 0 and below 65537"),
        (lambda: DenseOptions(bucket_bytes=1 << 63), "expected a whole number, at least 1 in 64 bits"),
    ],
)  # fmt: skip
def test_messages(make, message):
    with pytest.raises(UsageError) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.parametrize("rule", [Adagrad(0.1, initial=0, epsilon=2.65e-23), Adam(0.1, epsilon=2.65e-23)], ids=str)
def test_the_least_epsilon_makes_no_step_longer_than_the_rate(rule):
    """The square of a small gradient is 0 in float32, also where the gradient itself is none; a zero stays one."""
    gradients = np.array([0, 1e-45, 1e-38, 1e-30, 1e-24, 1e-23, 3e-23, 1e-22, 1e-20], np.float32)
    values = np.zeros_like(gradients)
    rule.update_dense(values, gradients.copy(), rule.new_state(values), 1)
    # Adam divides both moments by the first step's, 0.1 and 0.001: its small moment is 0 for gradients below 1e-21.
    assert np.isfinite(values).all() and values[0] == 0
    assert np.abs(values).max() <= 0.1 * (40 if rule.name == "adam" else 1.001)


@given(st.one_of(st.integers(), st.floats(), st.text(max_size=5), st.booleans(), st.none(), st.lists(st.integers())))
def test_what_is_taken_is_as_the_type_says(value):
    taken = {
        int: lambda v: 3 <= v < 10,
        float: lambda v: 3 <= v < 10 and np.isfinite(np.float32(v)),
    }
    for kind, right in taken.items():
        hint = typing.Annotated[kind, Range(3, 10)]
        if accepted(hint, value):
            assert right(checked(value, hint, "x")) and not isinstance(value, bool)
    if accepted(bool, value):
        assert isinstance(value, bool)
    text = str(value)
    try:
        found = argument(typing.Annotated[int, Range(3, 10)])(text)
    except Exception as error:  # argparse shows it
        assert type(error).__name__ == "ArgumentTypeError" and "expected a whole number" in str(error)
    else:
        assert 3 <= found < 10


# Each key of a job file with the option that it sets.
APART = ("pull_path", "cache")
SAME = [
    *((TrainingSection, name, hm.Trainer.__init__, name) for name in ("seed", "clip", "nonfinite")),
    (TrainingSection, "steps", hm.Trainer.fit, "steps"),
    (WorldSection, "servers", hm.World.__init__, "servers"),
    *((CheckpointSection, name, hm.Trainer.save, name) for name in ("keep", "behind")),
    *((SparseSection, f.name, SparseOptions, f.name) for f in fields(SparseOptions) if f.name not in APART),
    (SparseSection, "mode", hm.Trainer.__init__, "mode"),
    (SparseSection, "cache_policy", hm.CacheOptions, "policy"),
    (SparseSection, "cache_staleness", hm.CacheOptions, "staleness"),
    *((AllReduceSection, name, DenseOptions, name) for name in ("wire", "algorithm", "overlap", "check")),
]  # fmt: skip


def test_a_key_of_a_job_file_takes_what_its_option_takes():
    for section, key, owner, name in SAME:
        of_key = hints_of(section)[key]
        of_option = hints_of(owner)[name] if inspect.isclass(owner) else argument_types(owner)[name]
        assert described(of_key, python=True) == described(of_option, python=True), (section, key)
    for kind, model in (("language", "lm:LanguageModel"), ("translation", "nmt:TranslationModel")):
        section = importlib.import_module(f"hybridmpi.training.{kind}").ModelSection
        module, name = model.split(":")
        taken = argument_types(vars(importlib.import_module(f"hybridmpi.models.{module}"))[name].__init__)
        for key, hint in hints_of(section).items():
            assert key == "kind" or described(hint) == described(taken[key]), (kind, key)


def test_staleness_without_a_bound():
    hint = argument_types(hm.Trainer.__init__)["staleness"]
    assert checked(math.inf, hint, "x") == math.inf and checked(np.int64(2), hint, "x") == 2
    assert not any(accepted(hint, value) for value in (1.5, -1, -math.inf, math.nan, True, "unbounded"))


def test_seeds_of_32_bits_give_different_data():
    def drawn(seed):
        draws.begin_step(seed, 0, 0)
        batch = next(training_batches(GeneratedClicks(100_000, 1.0, 1, 0, seed), 64, 0, 0, 1))
        layer = hm.nn.Linear(3, 3)
        layer.initialise(seed)
        return batch.features.tobytes(), draws.generator("x").bytes(8), layer.weight.data.tobytes()

    different = [drawn(seed) for seed in (0, 1, 2, (1 << 31) + 1, (1 << 32) - 1)]
    for one in zip(*different, strict=True):
        assert len(set(one)) == len(different)
    for seed in (1 << 32, (1 << 32) + 1, 1 << 64, -1, 1.0):
        for make in (drawn, hm.nn.Linear(3, 3).initialise, lambda s: GeneratedClicks(100_000, 1.0, 1, 0, s)):
            with pytest.raises(
                UsageError, match=r"seed = .*; expected a whole number, at least 0 and below 4294967296"
            ):
                make(seed)


def test_arguments_by_place_and_by_name_are_checked_alike():
    @checks_arguments
    def sized(first, count: typing.Annotated[int, Range(1)] = 1, *rest: int, flag: bool = False, **more: int):
        return first, count, rest, flag, more

    assert sized("a", np.int8(2), "b", flag=np.True_, other="c") == ("a", 2, ("b",), True, {"other": "c"})
    for call in (lambda: sized(1, 0), lambda: sized(1, count=0), lambda: sized(1, flag=1)):
        with pytest.raises(UsageError, match=r"^sized: (count|flag) = "):
            call()
    with pytest.raises(TypeError, match="missing a required argument"):
        sized()
