"""Recursive functions over data of any structure, batched: `recursive` and `push`."""

from hybridmpi.dynamic.recursion.function import push, recursive

__all__ = ["push", "recursive"]
