"""What the peer benchmarks share: thread limits, validation, the one JSON line.

Import this before numpy or torch: `parse` sets the thread limits in the environment, which the
numerical libraries read only once, when they are loaded.
"""

import argparse
import json
import os
import statistics
import sys
import time

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def parser(doc, threads=1, reps=7):
    """Return an argument parser with the options that every benchmark has."""
    result = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument(
        "--threads", type=int, default=threads, help="BLAS and OpenMP threads of each process (default %(default)s)"
    )
    result.add_argument("--reps", type=int, default=reps, help="timed repetitions, at least 5 (default %(default)s)")
    return result


def parse(arguments):
    """Parse the command line and set the thread limits; call it before importing numpy or torch."""
    options = arguments.parse_args()
    if options.reps < 5:
        arguments.error("--reps must be at least 5")
    if options.threads < 1:
        arguments.error("--threads must be at least 1")
    limit_threads(options.threads)
    return options


def limit_threads(count):
    """Set the thread limits of this process (before numpy and torch are loaded) and of its children."""
    for name in THREAD_VARIABLES:
        os.environ[name] = str(count)


def use_torch(threads):
    """Import torch with the given number of threads and return it."""
    import torch

    torch.set_num_threads(threads)
    return torch


def time_calls(function, reps, warmup=2):
    """Call function() warmup + reps times; return the seconds of the last reps calls."""
    for _ in range(warmup):
        function()
    seconds = []
    for _ in range(reps):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return seconds


def time_training(peer, trees, batch, reps):
    """Train on trees in whole batches, over and over; return the rates in trees/s, and how fast they were prepared.

    The loss must fall from the first, untimed pass to the last.
    """
    start = time.perf_counter()
    prepared = peer.prepare(trees)
    preparation = time.perf_counter() - start
    parts = [prepared[i : i + batch] for i in range(0, len(trees), batch)]
    losses = []
    seconds = time_calls(lambda: losses.append(sum(peer.step(part) for part in parts)), reps, warmup=1)
    require(losses[-1] < losses[0], f"the loss did not fall: {losses[0]} to {losses[-1]}")
    info = {"prepare_trees_per_s": significant(len(trees) / preparation, 3)}
    return [len(trees) / s for s in seconds], info


def loopback_bytes():
    """Return the bytes sent over this machine's loopback interface since it came up, or None."""
    try:
        with open("/proc/net/dev", encoding="ascii") as file:
            fields = next(line for line in file if line.strip().startswith("lo:")).split(":")[1].split()
        return int(fields[8])
    except (OSError, StopIteration):
        return None


def require(condition, message):
    """End the benchmark with exit status 1, and print no figure, unless condition holds."""
    if not condition:
        sys.exit(f"VALIDATION FAILED: {message}")


def record(peer, version, what, params, samples, unit, info=None):
    """Return one result: samples are the repetitions, already in the given unit."""
    result = {
        "peer": peer,
        "version": version,
        "what": what,
        "params": params,
        "median": significant(statistics.median(samples)),
        "unit": unit,
        "min": significant(min(samples)),
        "max": significant(max(samples)),
        "n": len(samples),
    }
    if info:
        result["info"] = info
    return result


def significant(value, digits=5):
    """Round to a number of significant digits."""
    return float(f"{value:.{digits}g}")


def describe(result):
    """Print one result as a line for people."""
    params = " ".join(f"{key}={value}" for key, value in result["params"].items())
    print(
        f"{result['peer']:<34} {params}: {result['median']:,} {result['unit']}"
        f" (min {result['min']:,}, max {result['max']:,}, n {result['n']})",
        flush=True,
    )


def emit(result):
    """Print the JSON line."""
    line = dict(result)
    line["info"] = {
        **line.get("info", {}),
        "load_average": [round(x, 2) for x in os.getloadavg()],
        "cores": os.cpu_count(),
    }
    print(json.dumps(line), flush=True)
