"""Peers: summing the duplicate rows of a sparse gradient with numpy, scipy, pandas and torch.

Purpose      rows/s at which n (id, row of d float32) pairs become sorted unique ids and one summed row each
Environment  python -m venv V && V/bin/pip install torch==2.13.0 numpy==2.4.6 scipy==1.17.1 pandas==3.1.1
             (methods of absent packages are left out)
Usage        V/bin/python aggregate.py --rows 65536 --width 64 512 --table 1000000 --threads 1
             V/bin/python aggregate.py --method torch_coalesce --width 64

Every method starts from the same unsorted int64 ids and C-ordered values and must return (sorted unique ids, summed
rows); sorting is part of the time. Validation: ids equal, and sums within float32 rounding of a float64 reference,
before anything is timed.
The JSON line's headline is the fastest method at the last width; `results` has every method and width.
"""

import importlib.util

import common

METHODS = {
    "numpy_add_at": "numpy",
    "numpy_reduceat": "numpy",
    "scipy_csr": "scipy",
    "pandas_groupby": "pandas",
    "torch_coalesce": "torch",
    "torch_index_add": "torch",
    "torch_embedding_bag": "torch",
}


def numpy_methods(np, ids, values, table):
    def numpy_add_at():
        unique, inverse = np.unique(ids, return_inverse=True)
        sums = np.zeros((len(unique), values.shape[1]), dtype=values.dtype)
        np.add.at(sums, inverse, values)
        return unique, sums

    def numpy_reduceat():
        order, unique, starts = sort_ids(np, ids)
        return unique, np.add.reduceat(values[order], starts, axis=0)

    return {"numpy_add_at": numpy_add_at, "numpy_reduceat": numpy_reduceat}


def sort_ids(np, ids):
    """Return the stable order of ids, the unique ids, and where each begins in that order."""
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    return order, ordered[starts], starts


def scipy_methods(np, ids, values, table):
    from scipy import sparse

    def scipy_csr():
        order, unique, starts = sort_ids(np, ids)
        ones = np.ones(len(ids), dtype=values.dtype)
        picks = sparse.csr_matrix((ones, order, np.append(starts, len(ids))), shape=(len(unique), len(ids)))
        return unique, picks @ values

    return {"scipy_csr": scipy_csr}


def pandas_methods(np, ids, values, table):
    import pandas

    def pandas_groupby():
        sums = pandas.DataFrame(values, copy=False).groupby(ids, sort=True).sum()
        return sums.index.to_numpy(), sums.to_numpy()

    return {"pandas_groupby": pandas_groupby}


def torch_methods(np, ids, values, table):
    import torch

    torch.sparse.check_sparse_tensor_invariants.disable()
    ids, values = torch.from_numpy(ids), torch.from_numpy(values)

    def torch_coalesce():
        sums = torch.sparse_coo_tensor(ids[None], values, (table, values.shape[1])).coalesce()
        return sums.indices()[0], sums.values()

    def torch_index_add():
        unique, inverse = torch.unique(ids, return_inverse=True)
        return unique, values.new_zeros(len(unique), values.shape[1]).index_add_(0, inverse, values)

    def torch_embedding_bag():
        ordered, order = torch.sort(ids, stable=True)
        unique, counts = torch.unique_consecutive(ordered, return_counts=True)
        starts = torch.cumsum(counts, 0) - counts
        return unique, torch.nn.functional.embedding_bag(order, values, starts, mode="sum")

    return {
        "torch_coalesce": torch_coalesce,
        "torch_index_add": torch_index_add,
        "torch_embedding_bag": torch_embedding_bag,
    }


def main():
    arguments = common.parser(__doc__)
    arguments.add_argument("--rows", type=int, default=65536, help="pairs to aggregate")
    arguments.add_argument("--width", type=int, nargs="+", default=[64, 512])
    arguments.add_argument("--table", type=int, default=1_000_000, help="ids are below this")
    arguments.add_argument("--zipf", type=float, default=1.1, help="exponent of the ids' frequencies")
    arguments.add_argument("--method", nargs="+", choices=list(METHODS), default=list(METHODS))
    arguments.add_argument("--seed", type=int, default=1)
    options = common.parse(arguments)
    import numpy as np

    versions = {
        name: __import__(name).__version__
        for name in ("numpy", "scipy", "pandas", "torch")
        if importlib.util.find_spec(name)
    }
    if "torch" in versions:
        common.use_torch(options.threads)
    random = np.random.default_rng(options.seed)
    weights = np.arange(1, options.table + 1, dtype=np.float64) ** -options.zipf
    drawn = np.searchsorted(np.cumsum(weights) / weights.sum(), random.random(options.rows))
    ids = random.permutation(options.table)[np.minimum(drawn, options.table - 1)].astype(np.int64)
    results = []
    for width in options.width:
        values = random.standard_normal((options.rows, width), dtype=np.float32)
        unique, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
        expected = np.zeros((len(unique), width))
        np.add.at(expected, inverse, values.astype(np.float64))
        bound = 1e-6 * counts[:, None] * 6 + 1e-6
        methods = {}
        for package, make in (
            ("numpy", numpy_methods),
            ("scipy", scipy_methods),
            ("pandas", pandas_methods),
            ("torch", torch_methods),
        ):
            if package in versions:
                methods.update(make(np, ids, values, options.table))
        for name in options.method:
            if name not in methods:
                continue
            got_ids, got = (np.asarray(part) for part in methods[name]())
            common.require(np.array_equal(got_ids, unique), f"{name}: wrong ids")
            common.require(
                got.shape == expected.shape and (np.abs(got - expected) <= bound).all(), f"{name}: wrong sums"
            )
            seconds = common.time_calls(methods[name], options.reps)
            results.append(
                common.record(
                    name,
                    f"{METHODS[name]} {versions[METHODS[name]]}",
                    "sum of duplicate rows",
                    {
                        "rows": options.rows,
                        "width": width,
                        "unique": len(unique),
                        "table": options.table,
                        "zipf": options.zipf,
                        "threads": options.threads,
                    },
                    [options.rows / s for s in seconds],
                    "rows/s",
                )
            )
            common.describe(results[-1])
    common.require(results, "none of the chosen methods is installed")
    last = [result for result in results if result["params"]["width"] == results[-1]["params"]["width"]]
    common.emit({**max(last, key=lambda result: result["median"]), "results": results})


if __name__ == "__main__":
    main()
