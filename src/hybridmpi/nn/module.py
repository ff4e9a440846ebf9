"""Module: a part of a model. Its attributes are its children; names are found by walking them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from hybridmpi.autograd import Parameter
from hybridmpi.autograd.initial import generator_for
from hybridmpi.autograd.tracing import Traced

if TYPE_CHECKING:
    from hybridmpi.nn.embedding import Embedding


class Module:
    """Base of layers and models: attributes that are modules, parameters, or lists and tuples of them are children.

    Nothing is registered and there is no `super().__init__()` to forget: names are read off the attributes when asked
    for, dotted, list items by their number ("layers.0.weight"). What is reachable by two names goes by the first.
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
        for _, part in _walk(self, ""):
            if isinstance(part, Parameter):
                first.setdefault(id(part), (names[id(part)], part))
        return list(first.values())

    @checks_arguments
    def initialise(self, seed: Seed) -> None:
        """Give every dense parameter its initial values, a function of (seed, dotted name), and its name. Local."""
        for name, parameter in self.named_parameters():
            parameter.name = name
            parameter.initialise(generator_for(seed, name))

    def train(self, training: bool = True) -> Self:
        """Make this module and all below it behave as in training (or not); return it. Local."""
        self.training = training
        for _, part in self._named():
            if isinstance(part, Module) and part is not self:
                part.train(training)
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
        seen, result = set(), []
        for name, part in sorted(_walk(self, ""), key=lambda item: item[0]):
            if id(part) not in seen:
                seen.add(id(part))
                result.append((name, part))
        return result


def _walk(part: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, part) for `part`, if it has a name, and everything below it."""
    if isinstance(part, (Module, Parameter)) and name:
        yield name, part
    if isinstance(part, Module):
        children = vars(part).items()
    elif isinstance(part, (list, tuple)):
        children = enumerate(part)
    else:
        return
    for key, child in children:
        if isinstance(child, (Module, Parameter, list, tuple)):
            yield from _walk(child, f"{name}.{key}" if name else str(key))
