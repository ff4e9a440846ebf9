"""What a trainer consists of: every number, text and array that can be reached from it, by path. For tests."""

import types
from collections import deque

import numpy as np

from hybridmpi.world import World

PLAIN = (int, float, complex, str, bytes, type(None), np.generic)


def state_of(root):
    """Return {path: value} of all that `root` reaches through objects of hybridmpi and of checks, containers, bound
    methods and the variables of closures; arrays are copied. Not entered: a World, which outlives trainers, classes,
    and what other libraries made."""
    found, seen, todo = {}, {}, deque([("", root)])
    while todo:
        path, value = todo.popleft()
        if isinstance(value, PLAIN):
            found[path] = value
        elif isinstance(value, tuple) or id(value) not in seen:  # equal tuples may be one, and belong to several
            seen[id(value)] = value  # kept, so that no other gets its id
            if isinstance(value, np.ndarray) and value.dtype != object:
                found[path] = value.copy()
            elif isinstance(value, (set, frozenset)):
                found[path] = sorted(map(repr, value))
            else:
                if isinstance(value, (dict, list, tuple, deque)):
                    found[f"{path}#"] = len(value)
                todo.extend((path + step, part) for step, part in parts_of(value))
    return found


def parts_of(value):
    """Yield (step of the path, part) for everything that `value` consists of."""
    if isinstance(value, dict):
        yield from ((f"[{key if isinstance(key, str) else 'number'}]", part) for key, part in value.items())
    elif isinstance(value, (list, tuple, deque)):
        yield from ((f"[{number}]", part) for number, part in enumerate(value))
    elif isinstance(value, types.MethodType):
        yield ".self", value.__self__
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield f".{name}", cell.cell_contents
    elif type(value).__module__.startswith(("hybridmpi", "checks_")) and not isinstance(value, (World, type)):
        yield from ((f".{name}", part) for name, part in vars(value).items()) if hasattr(value, "__dict__") else ()
        slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()))
        yield from ((f".{name}", getattr(value, name)) for name in slots if hasattr(value, name))


def differing(one, other):
    """Return the paths whose values differ, or that only one of two states has."""
    paths = one.keys() | other.keys()
    return {path for path in paths if path not in one or path not in other or changed(one, other, path)}


def changed(one, other, path):
    a, b = one[path], other[path]
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes()
    return type(a) is not type(b) or not (a == b or (a != a and b != b))
