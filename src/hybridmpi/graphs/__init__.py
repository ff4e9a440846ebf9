"""Instance graphs as arrays: trees, chains and graphs whose vertices share children; builders and a picture."""

from hybridmpi.graphs.brackets import from_brackets
from hybridmpi.graphs.builders import chains, from_edges, from_parents
from hybridmpi.graphs.graphs import Graphs
from hybridmpi.graphs.ordered_trees import from_ast, from_nested

__all__ = ["Graphs", "chains", "from_ast", "from_brackets", "from_edges", "from_nested", "from_parents"]
