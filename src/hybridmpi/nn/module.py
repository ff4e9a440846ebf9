"""Module: a part of a model. Its attributes are its children; names are found by walking them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from hybridmpi.autograd import Parameter
from hybridmpi.autograd.initial import generator_for
from hybridmpi.autograd.tracing import Traced
from hybridmpi.errors import UsageError
from hybridmpi.field_types import Seed, checks_arguments

if TYPE_CHECKING:
    from hybridmpi.nn.embedding import Embedding


# By id, the modules whose mode is being changed: parts may refer to what they are part of.
_changing: set[int] = set()


class Module:
    """Base of layers and models: attributes that are modules, parameters, or lists, tuples and dicts of them are
    children.

    Nothing is registered and there is no `super().__init__()` to forget: names are read off the attributes when asked
    for, dotted, items of lists by their number, of dicts by their key ("layers.0.weight", "heads.left.weight"). What is
    reachable by two names goes by the first; a reference back to a module that this one is part of is none of its
    parts. Names go into checkpoints and messages: where two parts have one name, or a name cannot be stored, everything
    that asks for names raises UsageError.
    """

    training = True
    is_table = False

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """Return every dense parameter with its dotted name, sorted by name. Local."""
        return [(name, part) for name, part in self._named() if isinstance(part, Parameter)]

    def named_tables(self) -> list[tuple[str, Embedding]]:
        """Return every table (sparse parameter) with its dotted name, sorted by name. Local."""
        return [(name, part) for name, part in self._named() if isinstance(part, Module) and part.is_table]

    def parameters(self) -> list[Parameter]:
        """Return every dense parameter, sorted by name. Local."""
        return [parameter for _, parameter in self.named_parameters()]

    def parameters_in_order(self) -> list[tuple[str, Parameter]]:
        """Return every dense parameter with its dotted name, each once, in the order in which the model was built:
        about that in which it is used, and the opposite of that in which gradients come. Local."""
        first: dict[int, tuple[str, Parameter]] = {}
        names = {id(parameter): name for name, parameter in self.named_parameters()}
        for _, part, _ in _walk(self, "", "self", ()):
            if isinstance(part, Parameter):
                first.setdefault(id(part), (names[id(part)], part))
        return list(first.values())

    def names_of_tables(self) -> dict[str, Embedding]:
        """Return every table by each dotted name that leads to it. Local."""
        return {
            name: part for name, part, _ in _walk(self, "", "self", ()) if isinstance(part, Module) and part.is_table
        }

    @checks_arguments
    def initialise(self, seed: Seed) -> None:
        """Give every dense parameter its initial values, a function of (seed, dotted name), and its name. Local."""
        parameters, tables = self.named_parameters(), self.named_tables()
        if at_work := [name for name, part in (*parameters, *tables) if part.custody == "open"]:
            raise UsageError(
                f"initialise: '{at_work[0]}' belongs to a Trainer, whose ranks and owners hold its values too: close "
                "that one first"
            )
        for _, table in tables:
            table.custody = ""
        for name, parameter in parameters:
            parameter.name, parameter.custody = name, ""
            parameter.initialise(generator_for(seed, name))

    def train(self, training: bool = True) -> Self:
        """Make this module and all below it behave as in training (or not); return it. Local."""
        if id(self) in _changing:
            return self  # reached again from one of its parts
        _changing.add(id(self))
        try:
            self.training = training
            for _, part in self._named():
                if isinstance(part, Module):
                    part.train(training)
        finally:
            _changing.discard(id(self))
        return self

    def eval(self) -> Self:
        """Make this module and all below it behave as in evaluation; return it. Local."""
        return self.train(False)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Compute: what subclasses write as `forward`."""
        for argument in arguments:
            if isinstance(argument, Traced):
                return argument.note_module(self, arguments, options)
        return self.forward(*arguments, **options)

    def _named(self) -> list[tuple[str, Any]]:
        """Return all modules and parameters below this one, each once, sorted by name."""
        found: dict[str, tuple[Any, str]] = {}
        for name, part, path in _walk(self, "", "self", ()):
            other, first_path = found.setdefault(name, (part, path))
            if other is not part:
                raise UsageError(
                    f"model {type(self).__name__}: {first_path} and {path} are both called '{name}', by which values "
                    "are initialised, exchanged and stored: give one of them an attribute of another name"
                )
            _require_storable(name, path, type(self).__name__)
        seen, result = set(), []
        for name, (part, _) in sorted(found.items()):
            if id(part) not in seen:
                seen.add(id(part))
                result.append((name, part))
        return result


def _require_storable(name: str, path: str, model: str) -> None:
    """Raise UsageError for a name that files and messages cannot hold."""
    if name.isprintable() and "/" not in name and all(name.split(".")):
        return
    raise UsageError(
        f"model {model}: the name of {path} cannot be stored in a checkpoint: expected names without '/', control "
        "characters and empty parts between dots; give the attribute another name"
    )


# What has no lasting number or key by which a part in it could be named.
NAMELESS = (set, frozenset, deque)
# What the parts of a model are, or lie in.
HOLDERS = (Module, Parameter, list, tuple, dict, *NAMELESS)


def _walk(part: Any, name: str, path: str, above: tuple[Any, ...]) -> Iterator[tuple[str, Any, str]]:
    """Yield (dotted name, part, how Python reaches it) for `part`, if it is not the first, and everything below it but
    what is `above`."""
    if isinstance(part, (Module, Parameter)) and above:
        yield name, part, path
    if isinstance(part, Module):
        children = vars(part).items()
    elif isinstance(part, (list, tuple)):
        children = enumerate(part)
    elif isinstance(part, dict):
        children = part.items()
    else:
        return
    for key, child in children:
        if not isinstance(child, HOLDERS) or any(child is one for one in (part, *above)):
            continue
        if not isinstance(part, Module):
            reached = f"{path}[{key!r}]"
        else:
            reached = f"{path}.{key}" if str(key).isidentifier() else f"getattr({path}, {key!r})"
        if isinstance(child, NAMELESS) and any(isinstance(item, (Module, Parameter)) for item in child):
            raise UsageError(
                f"{reached} is a {type(child).__name__} of modules or parameters, which would have no lasting name and "
                "not be trained: put them into a list, a tuple or a dict"
            )
        yield from _walk(child, f"{name}.{key}" if above else str(key), reached, (part, *above))
