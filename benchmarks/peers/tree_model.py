"""The binary Tree-LSTM classifier that tree_{torch,dynet,dgl}.py train, its reference in numpy, and the measurement.

A leaf with word x:    [i o u] = Wx x + bx,           c = s(i) tanh(u),                           h = s(o) tanh(c)
An inner node, nary:   [i o u] = U [h_l; h_r] + bu,   [f_l f_r] = s(Uf [h_l; h_r] + bf)
             or, sum:  [i o u] = U (h_l + h_r) + bu,  f_k = s(Uf h_k + bf), one tied forget gate
                                                      c = s(i) tanh(u) + f_l c_l + f_r c_r,       h = s(o) tanh(c)
Every node:            logits = O h + bo; the loss is the sum of the five-class cross-entropies over all nodes.
Training is plain SGD; only the rows of the word table that occur are updated. The rate is tiny, so that the sum loss
stays stable at every batch size; it changes nothing in the work done.
"""

import common


def options(doc):
    """Parse the command line of a tree benchmark."""
    arguments = common.parser(doc)
    arguments.add_argument("--data", required=True, metavar="FILE", help="trees in brackets, one a line")
    arguments.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64, 256])
    arguments.add_argument("--hidden", type=int, default=150)
    arguments.add_argument("--width", type=int, default=300, help="width of the word vectors")
    arguments.add_argument("--cell", choices=("nary", "sum"), default="nary")
    return common.parse(arguments)


def parameters(words, options):
    """Return the initial parameters as float32 arrays."""
    import numpy as np

    random = np.random.default_rng(1)
    h, e = options.hidden, options.width
    nary = options.cell == "nary"
    shapes = {
        "words": (words, e),
        "Wx": (3 * h, e),
        "bx": (3 * h,),
        "U": (3 * h, 2 * h if nary else h),
        "bu": (3 * h,),
        "Uf": (2 * h, 2 * h) if nary else (h, h),
        "bf": (2 * h if nary else h,),
        "O": (5, h),
        "bo": (5,),
    }
    return {name: random.uniform(-0.1, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}


def reference_loss(trees, values, cell):
    """Return the loss, computed node by node in float64."""
    import numpy as np

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    p = {name: value if name == "words" else value.astype(np.float64) for name, value in values.items()}
    loss, n = 0.0, p["O"].shape[1]
    for tree in trees:
        h, c = [], []
        for left, right, word, label in zip(tree.left, tree.right, tree.word, tree.label, strict=True):
            if left < 0:
                gates, kept = p["Wx"] @ p["words"][word].astype(np.float64) + p["bx"], 0.0
            elif cell == "nary":
                both = np.concatenate([h[left], h[right]])
                gates, forget = p["U"] @ both + p["bu"], sigmoid(p["Uf"] @ both + p["bf"])
                kept = forget[:n] * c[left] + forget[n:] * c[right]
            else:
                gates = p["U"] @ (h[left] + h[right]) + p["bu"]
                kept = sum(sigmoid(p["Uf"] @ h[k] + p["bf"]) * c[k] for k in (left, right))
            c.append(sigmoid(gates[:n]) * np.tanh(gates[2 * n :]) + kept)
            h.append(sigmoid(gates[n : 2 * n]) * np.tanh(c[-1]))
            logits = p["O"] @ h[-1] + p["bo"]
            loss += np.log(np.exp(logits).sum()) - logits[label]
    return loss


def validate(make, trees, words, options):
    """Take one step of rate 1 on four trees: loss and every gradient must be those of the reference.

    The gradient g of a parameter is what the step subtracted; along g/|g| the reference must rise by |g|.
    """
    import numpy as np

    start, few = parameters(words, options), trees[:4]
    peer = make(start, 1.0)
    loss = peer.step(peer.prepare(few))
    expected = reference_loss(few, start, options.cell)
    common.require(abs(loss - expected) < 1e-4 * expected, f"loss {loss}, expected {expected}")
    for name, value in peer.values().items():
        gradient = start[name].astype(np.float64) - value
        norm = np.linalg.norm(gradient)
        step = gradient * (1e-4 / norm)
        up, down = ({**start, name: start[name] + sign * step} for sign in (1, -1))
        slope = (reference_loss(few, up, options.cell) - reference_loss(few, down, options.cell)) / 2e-4
        common.require(norm > 0 and abs(slope - norm) < 2e-3 * norm, f"gradient of {name}: {norm}, expected {slope}")


def trees_of(batch):
    """Return on how many trees a repetition trains: max(128, min(512, 32 batch)), up to a multiple of the batch."""
    return -(-max(128, min(512, 32 * batch)) // batch) * batch


def run(make, peer_name, version, trees, words, options):
    """Validate, then time every batch size; print the lines. make(parameters, rate) returns the peer under test.

    One repetition trains on the same trees for every peer: the first trees_of(batch), in whole batches.
    """
    validate(make, trees, words, options)
    peer = make(parameters(words, options), 1e-5)
    results = []
    for batch in options.batch:
        count = trees_of(batch)
        common.require(len(trees) >= count, f"{options.data} has {len(trees)} trees; batch {batch} needs {count}")
        rates, info = common.time_training(peer, trees[:count], batch, options.reps)
        params = {
            "batch": batch,
            "hidden": options.hidden,
            "width": options.width,
            "cell": options.cell,
            "trees": count,
            "threads": options.threads,
        }
        results.append(common.record(peer_name, version, "Tree-LSTM training", params, rates, "trees/s", info))
        common.describe(results[-1])
    common.emit({**max(results, key=lambda result: result["median"]), "results": results})
