"""Peer: Tree-FC training with DyNet and its automatic batching.

Purpose      training trees/s on complete binary trees, the model of tree_fc_model.py, per batch size
Environment  python -m venv V && V/bin/pip install dynet38==2.2 numpy==2.4.6
Usage        V/bin/python tree_fc_dynet.py --batch 1 16 64 128

W is kept as its two halves, one for the left and one for the right child: a quarter faster here than the product with
the concatenated children. Batches are formed by agenda, DyNet's default. It computes with one thread, whatever
--threads says. Its graph is built anew for every batch, and that is part of the time, as it is for its users. Its
default clipping of gradients is off. Validation: loss and gradients against the numpy reference of tree_fc_model.py.
The JSON line's headline is the fastest batch size.
"""

import tree_fc_model

POOL_MB = 2048


class Peer:
    """The model in DyNet, whose matrices stand on the left."""

    def __init__(self, dy, start, rate):
        self.dy = dy
        self.model = dy.ParameterCollection()
        self.words = self.model.lookup_parameters_from_numpy(start["words"])
        h = len(start["b"])
        left, right, b = start["W"][:h].T.copy(), start["W"][h:].T.copy(), start["b"]
        self.left, self.right, self.b = (self.model.parameters_from_numpy(value) for value in (left, right, b))
        self.trainer = dy.SimpleSGDTrainer(self.model, rate)
        self.trainer.set_clip_threshold(0)

    def prepare(self, trees):
        return trees.tolist()

    def values(self):
        import numpy as np

        return {"W": np.concatenate([self.left.as_array().T, self.right.as_array().T]), "b": self.b.as_array()}

    def step(self, trees):
        dy, errors = self.dy, []
        dy.renew_cg()
        for leaves in trees:
            states = [dy.lookup(self.words, word, update=False) for word in leaves]
            while len(states) > 1:
                pairs = zip(states[::2], states[1::2], strict=True)
                states = [
                    dy.rectify(dy.affine_transform([self.b, self.left, left, self.right, right]))
                    for left, right in pairs
                ]
            errors.append(dy.squared_norm(states[0] - 1))
        loss = dy.esum(errors) * 0.5
        value = loss.value()
        loss.backward()
        self.trainer.update()
        return value


def main():
    options = tree_fc_model.options(__doc__)
    import importlib.metadata

    import dynet_config

    dynet_config.set(mem=POOL_MB, autobatch=1, random_seed=1)
    import dynet as dy

    version = "dynet38 " + importlib.metadata.version("dynet38")
    tree_fc_model.run(lambda start, rate: Peer(dy, start, rate), "dynet", version, options)


if __name__ == "__main__":
    main()
