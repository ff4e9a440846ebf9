"""Peer: torch.distributed all_reduce on the gloo backend, float32 sum in place, processes on this machine.

Purpose      time and bus bandwidth of gloo's all-reduce, for a list of message sizes
Environment  python -m venv V && V/bin/pip install torch==2.13.0 numpy==2.4.6
Usage        V/bin/python allreduce_gloo.py --ranks 2 --bytes 4096 1048576 16777216

The script starts its own processes; gloo talks over TCP on the loopback interface. One repetition is a barrier and
then as many calls in a row as fill about --fill-ms, as in `hybridmpi bench`; its time is that of the slowest rank.

Validation: every size is summed with known values before and after it is timed, all elements on all ranks. The timed
calls reduce zeros, since an in-place sum of anything else soon overflows. The JSON line repeats the largest size;
`results` has every size, in us.
"""

import time

import common
import gloo

MOST_CALLS = 2000


def work(rank, ranks, options, torch, dist):
    """Time every size on this rank; rank 0 prints the results."""

    def right(buffer):
        """Reduce values whose sum is known exactly (small integers) and compare all of it."""
        pattern = torch.arange(buffer.numel()).remainder(1000).float()
        torch.mul(pattern, rank + 1, out=buffer)
        dist.all_reduce(buffer)
        return gloo.all_ranks(torch, dist, torch.equal(buffer, pattern * (ranks * (ranks + 1) // 2)))

    def repeat(buffer, calls):
        """Return the seconds of one of so many calls, on the slowest rank."""
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(buffer)
        return gloo.slowest(torch, dist, time.perf_counter() - start) / calls

    results = []
    for size in options.bytes:
        buffer = torch.empty(max(1, size // 4), dtype=torch.float32)
        ok = right(buffer)
        buffer.zero_()
        estimate = min(repeat(buffer, 1) for _ in range(3))
        calls = max(1, min(MOST_CALLS, round(options.fill_ms * 1e-3 / estimate)))
        microseconds = [repeat(buffer, calls) * 1e6 for _ in range(options.reps)]
        ok = right(buffer) and ok
        common.require(ok, f"wrong sum at {size} bytes")
        byte_count = buffer.numel() * 4
        result = common.record(
            "torch.distributed+gloo",
            f"torch {torch.__version__}",
            "allreduce in place, float32 sum",
            {"ranks": ranks, "bytes": byte_count, "threads": options.threads},
            microseconds,
            "us",
        )
        busbw = byte_count / (result["median"] * 1e-6) * 2 * (ranks - 1) / ranks / 1e9
        result["info"] = {"busbw_GBps": common.significant(busbw, 4), "calls_per_rep": calls}
        results.append(result)
        if rank == 0:
            common.describe(result)
    if rank == 0:
        common.emit({**max(results, key=lambda result: result["params"]["bytes"]), "results": results})


def main():
    """Run on --ranks processes."""
    arguments = common.parser(__doc__)
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--bytes", type=int, nargs="+", default=[1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24])
    arguments.add_argument("--fill-ms", type=float, default=30.0, help="length of one repetition in ms")
    gloo.spawn(work, common.parse(arguments))


if __name__ == "__main__":
    main()
