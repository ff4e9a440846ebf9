"""Peer: Tree-LSTM training with DGL (message passing level by level over a batch of trees).

Purpose      training trees/s on binary trees in brackets, the model of tree_model.py, per batch size
Environment  python -m venv V && V/bin/pip install torch==2.13.0 dgl==1.1.3 numpy==1.26.4 packaging
             && V/bin/pip install setuptools==69.5.1    (two steps: pip refuses them together)
Usage        V/bin/python tree_dgl.py --data FILE --batch 1 16 64 256 --threads 2

Trees become DGL graphs once, before the timing; dgl.batch and prop_nodes_topo with user-defined functions are in it,
as is usual for tree models in DGL. Validation: loss and gradients against the numpy reference of tree_model.py.
The JSON line's headline is the fastest batch size.
"""

import warnings

import common
import sst
import tree_model


class Peer:
    """The model in DGL."""

    def __init__(self, torch, dgl, start, rate, options):
        self.torch, self.dgl, self.h, self.nary = torch, dgl, options.hidden, options.cell == "nary"
        self.p = {name: torch.nn.Parameter(torch.from_numpy(value.copy())) for name, value in start.items()}
        self.optimiser = torch.optim.SGD(self.p.values(), rate)

    def prepare(self, trees):
        torch, graphs = self.torch, []
        for tree in trees:
            inner = torch.from_numpy(tree.left >= 0).nonzero()[:, 0]
            children = torch.stack([torch.from_numpy(tree.left)[inner], torch.from_numpy(tree.right)[inner]], 1)
            graph = self.dgl.graph((children.reshape(-1), inner.repeat_interleave(2)), num_nodes=len(tree))
            graph.ndata["word"], graph.ndata["label"] = torch.from_numpy(tree.word), torch.from_numpy(tree.label)
            graphs.append(graph)
        return graphs

    def values(self):
        return {name: value.detach().numpy().copy() for name, value in self.p.items()}

    def send(self, edges):
        return {"h": edges.src["h"], "c": edges.src["c"]}

    def receive(self, nodes):
        torch, p, n = self.torch, self.p, self.h
        h, c = nodes.mailbox["h"], nodes.mailbox["c"]
        if self.nary:
            both = h.reshape(len(h), 2 * n)
            gates = torch.addmm(p["bu"], both, p["U"].T)
            forget = torch.addmm(p["bf"], both, p["Uf"].T)
        else:
            gates = torch.addmm(p["bu"], h.sum(1), p["U"].T)
            forget = torch.addmm(p["bf"], h.reshape(2 * len(h), n), p["Uf"].T)
        return {"gates": gates, "c": (torch.sigmoid(forget.view(len(h), 2, n)) * c).sum(1)}

    def apply(self, nodes):
        torch = self.torch
        i, o, u = nodes.data["gates"].chunk(3, 1)
        c = torch.sigmoid(i) * torch.tanh(u) + nodes.data["c"]
        return {"h": torch.sigmoid(o) * torch.tanh(c), "c": c}

    def step(self, graphs):
        torch, p = self.torch, self.p
        graph = self.dgl.batch(graphs)
        count, word = graph.num_nodes(), graph.ndata["word"]
        leaves = (word >= 0).nonzero()[:, 0]
        x = torch.nn.functional.embedding(word[leaves], p["words"], sparse=True)
        gates = torch.addmm(p["bx"], x, p["Wx"].T)
        graph.ndata["gates"] = torch.zeros(count, 3 * self.h).index_copy(0, leaves, gates)
        graph.ndata["h"], graph.ndata["c"] = torch.zeros(count, self.h), torch.zeros(count, self.h)
        self.dgl.prop_nodes_topo(graph, self.send, self.receive, apply_node_func=self.apply)
        logits = torch.addmm(p["bo"], graph.ndata.pop("h"), p["O"].T)
        loss = torch.nn.functional.cross_entropy(logits, graph.ndata["label"], reduction="sum")
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return loss.item()


def main():
    options = tree_model.options(__doc__)
    torch = common.use_torch(options.threads)
    torch.sparse.check_sparse_tensor_invariants.disable()
    warnings.simplefilter("ignore")
    import dgl

    trees, words = sst.load(options.data)
    tree_model.run(
        lambda start, rate: Peer(torch, dgl, start, rate, options),
        "dgl",
        f"dgl {dgl.__version__}, torch {torch.__version__}",
        trees,
        words,
        options,
    )


if __name__ == "__main__":
    main()
