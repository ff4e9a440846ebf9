"""Peer: Tree-FC training with PyTorch, level by level by hand.

Purpose      training trees/s on complete binary trees, the model of tree_fc_model.py, per batch size
Environment  python -m venv V && V/bin/pip install torch==2.13.0 numpy==2.4.6
Usage        V/bin/python tree_fc_torch.py --mode gather --batch 1 16 64 128 --threads 2

--mode gather   a level picks its children by number out of the level below: what any tree needs
--mode reshape  knows that the trees are complete: a level's pairs of children are a view of the level below, so that
                nothing is left but products and relu; a bound on what batching by levels can reach
Validation: loss and gradients against the numpy reference of tree_fc_model.py.
The JSON line's headline is the fastest batch size.
"""

import common
import tree_fc_model


class Peer:
    """The model in PyTorch."""

    def __init__(self, torch, start, rate, mode):
        self.torch, self.mode = torch, mode
        self.words = torch.from_numpy(start["words"])
        self.p = {name: torch.nn.Parameter(torch.from_numpy(start[name].copy())) for name in ("W", "b")}
        self.optimiser = torch.optim.SGD(self.p.values(), rate)

    def prepare(self, trees):
        return self.torch.from_numpy(trees)

    def values(self):
        return {name: value.detach().numpy().copy() for name, value in self.p.items()}

    def children(self, trees):
        """Return the numbers of the children, for every level, in its nodes' order: int64 [nodes, 2] each."""
        nodes, levels = trees.numel(), []
        while nodes > len(trees):
            levels.append(self.torch.arange(nodes).view(-1, 2))
            nodes //= 2
        return levels

    def step(self, trees):
        torch, p = self.torch, self.p
        width = len(p["W"])
        states = self.words.index_select(0, trees.reshape(-1))
        for children in self.children(trees):
            if self.mode == "gather":
                states = states.index_select(0, children.reshape(-1))
            states = torch.relu(torch.addmm(p["b"], states.view(-1, width), p["W"]))
        loss = 0.5 * (states - 1).square().sum()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return loss.item()


def main():
    options = tree_fc_model.options(__doc__, modes=("gather", "reshape"))
    torch = common.use_torch(options.threads)
    tree_fc_model.run(
        lambda start, rate: Peer(torch, start, rate, options.mode),
        f"torch {options.mode}",
        f"torch {torch.__version__}",
        options,
    )


if __name__ == "__main__":
    main()
