"""Peer: Tree-LSTM training with DyNet and its automatic batching.

Purpose      training trees/s on binary trees in brackets, the model of tree_model.py, per batch size
Environment  python -m venv V && V/bin/pip install dynet38==2.2 numpy==2.4.6
Usage        V/bin/python tree_dynet.py --data FILE --batch 1 16 64 256

Batches are formed by agenda, DyNet's default and the fastest of its three ways here. DyNet computes with one thread,
whatever --threads says. Its graph is built anew for every batch, and that is part of the time, as it is for its users.
Its default clipping of gradients is off. Validation: loss and gradients against the numpy reference of tree_model.py.
The JSON line's headline is the fastest batch size.
"""

import sst
import tree_model

POOL_MB = 2048


class Peer:
    """The model in DyNet."""

    def __init__(self, dy, start, rate, options):
        self.dy, self.h, self.nary = dy, options.hidden, options.cell == "nary"
        self.model = dy.ParameterCollection()
        self.words = self.model.lookup_parameters_from_numpy(start["words"])
        self.parameters = {
            name: self.model.parameters_from_numpy(value) for name, value in start.items() if name != "words"
        }
        self.trainer = dy.SimpleSGDTrainer(self.model, rate)
        self.trainer.set_clip_threshold(0)

    def prepare(self, trees):
        return [[part.tolist() for part in (tree.left, tree.right, tree.word, tree.label)] for tree in trees]

    def values(self):
        result = {name: value.as_array() for name, value in self.parameters.items()}
        return {"words": self.words.as_array(), **result}

    def state(self, gates, kept):
        dy, n = self.dy, self.h
        c = dy.cmult(dy.logistic(dy.pickrange(gates, 0, n)), dy.tanh(dy.pickrange(gates, 2 * n, 3 * n)))
        if kept is not None:
            c = c + kept
        return dy.cmult(dy.logistic(dy.pickrange(gates, n, 2 * n)), dy.tanh(c)), c

    def inner(self, hl, hr, cl, cr):
        dy, n, p = self.dy, self.h, self.parameters
        if self.nary:
            both = dy.concatenate([hl, hr])
            forget = dy.logistic(dy.affine_transform([p["bf"], p["Uf"], both]))
            fl, fr = dy.pickrange(forget, 0, n), dy.pickrange(forget, n, 2 * n)
        else:
            both = hl + hr
            fl, fr = (dy.logistic(dy.affine_transform([p["bf"], p["Uf"], child])) for child in (hl, hr))
        gates = dy.affine_transform([p["bu"], p["U"], both])
        return self.state(gates, dy.cmult(fl, cl) + dy.cmult(fr, cr))

    def step(self, trees):
        dy, p, losses = self.dy, self.parameters, []
        dy.renew_cg()
        for left, right, word, label in trees:
            h, c = [], []
            for first, second, w, y in zip(left, right, word, label, strict=True):
                if first < 0:
                    state = self.state(dy.affine_transform([p["bx"], p["Wx"], self.words[w]]), None)
                else:
                    state = self.inner(h[first], h[second], c[first], c[second])
                h.append(state[0])
                c.append(state[1])
                losses.append(dy.pickneglogsoftmax(dy.affine_transform([p["bo"], p["O"], state[0]]), y))
        loss = dy.esum(losses)
        value = loss.value()
        loss.backward()
        self.trainer.update()
        return value


def main():
    options = tree_model.options(__doc__)
    import importlib.metadata

    import dynet_config

    dynet_config.set(mem=POOL_MB, autobatch=1, random_seed=1)
    import dynet as dy

    trees, words = sst.load(options.data)
    tree_model.run(
        lambda start, rate: Peer(dy, start, rate, options),
        "dynet",
        "dynet38 " + importlib.metadata.version("dynet38"),
        trees,
        words,
        options,
    )


if __name__ == "__main__":
    main()
