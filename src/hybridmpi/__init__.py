"""hybridmpi: trains models whose parameters are partly dense and partly sparse, over MPI.

The public names load on first use, so that `import hybridmpi` costs next to nothing and chooses MPI's thread level
before MPI is loaded.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hybridmpi import kernel_cache

if TYPE_CHECKING:
    from hybridmpi import autograd, checkpoint, data, dynamic, graphs, models, nn, optim
    from hybridmpi.dynamic.recursion.function import push, recursive
    from hybridmpi.sparse.cache import CacheOptions
    from hybridmpi.training.dense import DenseOptions
    from hybridmpi.training.tables import SparseOptions
    from hybridmpi.training.trace import Trace
    from hybridmpi.training.trainer import Trainer
    from hybridmpi.world import World, run

kernel_cache.choose({*__path__, *find_spec("hybridmpi.kernels").submodule_search_locations})

# public name -> module; a name that is a module itself maps to None.
_PUBLIC = {
    "CacheOptions": "hybridmpi.sparse.cache",
    "DenseOptions": "hybridmpi.training.dense",
    "SparseOptions": "hybridmpi.training.tables",
    "Trace": "hybridmpi.training.trace",
    "Trainer": "hybridmpi.training.trainer",
    "World": "hybridmpi.world",
    "autograd": None,
    "checkpoint": None,
    "data": None,
    "dynamic": None,
    "errors": None,
    "graphs": None,
    "models": None,
    "nn": None,
    "optim": None,
    "push": "hybridmpi.dynamic.recursion.function",
    "recursive": "hybridmpi.dynamic.recursion.function",
    "run": "hybridmpi.world",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'hybridmpi' has no attribute {name!r}; it has {', '.join(__all__)}")
    module = _PUBLIC[name]
    value = importlib.import_module(f"hybridmpi.{name}") if module is None else getattr(
        importlib.import_module(module), name
    )  # fmt: skip
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
