"""Peer: Tree-LSTM training with PyTorch, batched by hand level by level.

Purpose      training trees/s on binary trees in brackets, the model of tree_model.py, per batch size
Environment  python -m venv V && V/bin/pip install torch==2.13.0 numpy==2.4.6
Usage        V/bin/python tree_torch.py --data FILE --batch 1 16 64 256 --threads 2

All nodes of one level over the whole batch at once; a level's states are split by the level at which they are used, so
that the copying stays linear in the nodes: careful work by hand. Slower here at every batch size were: to pick the
children out of all states so far, the cells through torch.compile, and one node at a time.
Validation: loss and gradients against the numpy reference of tree_model.py.
The JSON line's headline is the fastest batch size.
"""

import common
import sst
import tree_model


class Peer:
    """The model in PyTorch; the weights of [i o u] and of the forget gates are one matrix where they share an input."""

    def __init__(self, torch, start, rate, options):
        self.torch, self.h, self.nary = torch, options.hidden, options.cell == "nary"
        p = {name: torch.from_numpy(value.copy()) for name, value in start.items()}
        if self.nary:
            p["U"], p["bu"] = torch.cat([p["U"], p.pop("Uf")]), torch.cat([p["bu"], p.pop("bf")])
        self.p = {name: torch.nn.Parameter(value) for name, value in p.items()}
        self.optimiser = torch.optim.SGD(self.p.values(), rate)

    def prepare(self, trees):
        return trees

    def values(self):
        result = {name: value.detach().numpy().copy() for name, value in self.p.items()}
        if self.nary:
            n = 3 * self.h
            result["Uf"], result["bf"] = result["U"][n:], result["bu"][n:]
            result["U"], result["bu"] = result["U"][:n], result["bu"][:n]
        return result

    def leaf(self, x):
        """Return [h c] of the leaves with word vectors x [n, width]."""
        torch, p = self.torch, self.p
        i, o, u = torch.addmm(p["bx"], x, p["Wx"].T).chunk(3, 1)
        c = torch.sigmoid(i) * torch.tanh(u)
        return torch.cat([torch.sigmoid(o) * torch.tanh(c), c], 1)

    def inner(self, children):
        """Return [h c] of the nodes whose children are the rows [n, 2, (h c)]."""
        torch, p, n = self.torch, self.p, self.h
        h, c = children[:, :, :n], children[:, :, n:]
        if self.nary:
            gates = torch.addmm(p["bu"], h.reshape(len(h), 2 * n), p["U"].T)
            i, o, u, forget = gates.split([n, n, n, 2 * n], 1)
            forget = forget.reshape(len(h), 2, n)
        else:
            i, o, u = torch.addmm(p["bu"], h.sum(1), p["U"].T).chunk(3, 1)
            forget = torch.addmm(p["bf"], h.reshape(2 * len(h), n), p["Uf"].T).view(len(h), 2, n)
        c = torch.sigmoid(i) * torch.tanh(u) + (torch.sigmoid(forget) * c).sum(1)
        return torch.cat([torch.sigmoid(o) * torch.tanh(c), c], 1)

    def embed(self, words):
        return self.torch.nn.functional.embedding(words, self.p["words"], sparse=True)

    def step(self, trees):
        states, labels = self.forward(trees)
        logits = self.torch.addmm(self.p["bo"], states[:, : self.h], self.p["O"].T)
        loss = self.torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return loss.item()

    def forward(self, trees):
        """Return the states [h c] of all nodes, and their labels."""
        torch = self.torch
        batch = Batch(trees)
        inbox = [[] for _ in range(batch.levels)]  # of every level: the parts of lower levels that it uses
        states = []
        for level in range(batch.levels):
            nodes = slice(batch.first[level], batch.first[level + 1])
            if level == 0:
                state = self.leaf(self.embed(torch.from_numpy(batch.word[nodes])))
            else:
                children = torch.from_numpy(batch.slot[batch.children[nodes].reshape(-1)])
                used = torch.cat(inbox[level])
                state = self.inner(used.index_select(0, children).view(-1, 2, 2 * self.h))
            states.append(state)
            takers, sizes = batch.takers(level)
            for taker, part in zip(takers, state.split(sizes), strict=True):
                if taker < batch.levels:
                    inbox[taker].append(part)
        return torch.cat(states), torch.from_numpy(batch.label)


class Batch:
    """The nodes of several trees, ordered by level and, within one, by the level that uses them.

    first     first node of every level, and the end      word, label  of every node
    children  the two child nodes [n, 2], of inner nodes  taken        the level that uses a node; `levels` for roots
    slot      a node's place among all the nodes that the same level uses
    """

    def __init__(self, trees):
        import numpy as np

        shift = np.repeat(np.cumsum([0] + [len(tree) for tree in trees[:-1]]), [len(tree) for tree in trees])
        level = np.concatenate([tree.level for tree in trees])
        taken = np.concatenate([tree.taken for tree in trees])
        self.levels = int(level.max()) + 1
        taken[taken < 0] = self.levels
        order = np.lexsort((taken, level))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        self.level, self.taken = level[order], taken[order]
        self.first = np.searchsorted(self.level, np.arange(self.levels + 1))
        self.word = np.concatenate([tree.word for tree in trees])[order]
        self.label = np.concatenate([tree.label for tree in trees])[order]
        children = np.stack(
            [np.concatenate([tree.left for tree in trees]), np.concatenate([tree.right for tree in trees])], 1
        )
        self.children = place[np.where(children < 0, 0, children + shift[:, None])[order]]
        by_taker = np.argsort(self.taken, kind="stable")
        starts = np.searchsorted(self.taken[by_taker], np.arange(self.levels + 1))
        self.slot = np.empty(len(order), dtype=np.int64)
        self.slot[by_taker] = np.arange(len(order)) - starts[self.taken[by_taker]]

    def takers(self, level):
        """Return the levels that use nodes of this level, and how many nodes each uses, in node order."""
        import numpy as np

        takers, sizes = np.unique(self.taken[self.first[level] : self.first[level + 1]], return_counts=True)
        return takers.tolist(), sizes.tolist()


def main():
    options = tree_model.options(__doc__)
    torch = common.use_torch(options.threads)
    torch.sparse.check_sparse_tensor_invariants.disable()
    trees, words = sst.load(options.data)
    tree_model.run(
        lambda start, rate: Peer(torch, start, rate, options),
        "torch",
        f"torch {torch.__version__}",
        trees,
        words,
        options,
    )


if __name__ == "__main__":
    main()
