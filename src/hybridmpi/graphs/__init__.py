"""Instance graphs as arrays: trees, chains and graphs whose vertices share children; builders and a picture."""

from hybridmpi.graphs.arity import by_arity
from hybridmpi.graphs.brackets import from_brackets
from hybridmpi.graphs.builders import chains, from_edges, from_parents
from hybridmpi.graphs.graphs import Graphs
from hybridmpi.graphs.nodes import Node, root_nodes
from hybridmpi.graphs.ordered_trees import from_ast, from_nested
from hybridmpi.graphs.picture import plot

__all__ = [
    "Graphs",
    "Node",
    "by_arity",
    "chains",
    "from_ast",
    "from_brackets",
    "from_edges",
    "from_nested",
    "from_parents",
    "plot",
    "root_nodes",
]
