"""Tree-FC, the network that Cavs, TensorFlow Fold and DyNet are compared on; its reference in numpy; the measurement.

Complete binary trees. A leaf: its row of a given table, which is not trained. An inner node, with W [2 h, h]:
y = relu([y_l; y_r] W + b). The loss is half the sum over all trees of |y_root - 1|^2. A step is forward, backward and
SGD on W and b. W starts so large (variance 1 / h) that states keep their size from the leaves to the root. The rate is
tiny, so that the sum loss falls at every batch size; it changes nothing in the work done.
"""

import common

WORDS = 1000  # rows of the table of leaves
RATE = 1e-8


def options(doc, modes=()):
    """Parse the command line of a Tree-FC benchmark; modes: the ways it has, the first one by default."""
    arguments = common.parser(doc)
    arguments.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64, 128])
    arguments.add_argument("--hidden", type=int, default=256)
    arguments.add_argument("--leaves", type=int, default=256, help="of a tree, a power of two (default %(default)s)")
    if modes:
        arguments.add_argument("--mode", choices=modes, default=modes[0])
    found = common.parse(arguments)
    if found.leaves < 2 or found.leaves & (found.leaves - 1):
        arguments.error("--leaves must be a power of two, at least 2")
    return found


def parameters(options):
    """Return the initial values as float32 arrays: words [WORDS, h], W [2 h, h], b [h]."""
    import numpy as np

    random = np.random.default_rng(1)
    h = options.hidden
    bound = (6 / (2 * h)) ** 0.5
    return {
        "words": random.standard_normal((WORDS, h), dtype=np.float32),
        "W": random.uniform(-bound, bound, (2 * h, h)).astype(np.float32),
        "b": random.uniform(-0.1, 0.1, h).astype(np.float32),
    }


def trees(count, options):
    """Return the leaves of so many trees, left to right, as rows of the table: int64 [count, leaves]."""
    import numpy as np

    return np.random.default_rng(2).integers(0, WORDS, (count, options.leaves))


def reference(leaves, values):
    """Return the loss, and its gradients of W and b by name, in float64."""
    import numpy as np

    p = {name: value.astype(np.float64) for name, value in values.items()}
    count = len(leaves)
    states = [p["words"][leaves]]  # [count, nodes, h], level by level
    while states[-1].shape[1] > 1:
        states.append(np.maximum(states[-1].reshape(count, -1, len(p["W"])) @ p["W"] + p["b"], 0))
    error = states[-1] - 1
    loss, gradient = 0.5 * (error**2).sum(), {"W": 0.0, "b": 0.0}
    for below, state in zip(states[-2::-1], states[:0:-1], strict=True):
        error = np.where(state > 0, error, 0).reshape(-1, len(p["b"]))
        gradient["W"] = gradient["W"] + below.reshape(len(error), -1).T @ error
        gradient["b"] = gradient["b"] + error.sum(0)
        error = (error @ p["W"].T).reshape(below.shape)
    return loss, gradient


def validate(make, options):
    """Take one step on four trees: loss and gradients, known from what the step subtracted, must be the reference's.

    The rate is one at which the step neither drowns in the rounding of the values nor blows them up.
    """
    import numpy as np

    start, few, rate = parameters(options), trees(4, options), 1e-3
    peer = make(start, rate)
    loss = peer.step(peer.prepare(few))
    expected, gradient = reference(few, start)
    common.require(abs(loss - expected) < 1e-4 * expected, f"loss {loss}, expected {expected}")
    for name, value in peer.values().items():
        found = (start[name].astype(np.float64) - value) / rate
        off = np.linalg.norm(found - gradient[name]) / np.linalg.norm(gradient[name])
        common.require(off < 1e-3, f"gradient of {name} is off by {off} of its size")


def run(make, peer_name, version, options):
    """Validate, then time every batch size; print the lines. make(parameters, rate) returns the peer under test.

    One repetition trains on max(32, 2 batch) trees, the same ones for every peer, in whole batches.
    """
    validate(make, options)
    peer = make(parameters(options), RATE)
    results = []
    for batch in options.batch:
        count = max(32, 2 * batch) // batch * batch
        rates, info = common.time_training(peer, trees(count, options), batch, options.reps)
        params = {
            "batch": batch,
            "hidden": options.hidden,
            "leaves": options.leaves,
            "trees": count,
            "threads": options.threads,
        }
        results.append(common.record(peer_name, version, "Tree-FC training", params, rates, "trees/s", info))
        common.describe(results[-1])
    common.emit({**max(results, key=lambda result: result["median"]), "results": results})
