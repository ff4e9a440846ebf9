"""Dynamic models: what is computed differs from instance to instance, and is batched all the same.

A vertex function says what a vertex of a graph computes; a `GraphPass` runs it for all vertices of a batch of graphs.
A `recursive` function of a node calls itself, and may decide by values that it has computed.
"""

from hybridmpi.dynamic.graph_pass import GraphPass, Outputs
from hybridmpi.dynamic.phases import Batching
from hybridmpi.dynamic.recursion import push, recursive
from hybridmpi.dynamic.report import Report
from hybridmpi.dynamic.vertex import Vertex, VertexFunction

__all__ = ["Batching", "GraphPass", "Outputs", "Report", "Vertex", "VertexFunction", "push", "recursive"]
