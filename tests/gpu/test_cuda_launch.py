"""How kernels are launched on arrays of cupy, with stand-ins for cupy and for numba's CUDA."""

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("numba.cuda")

from hybridmpi.kernels import device


class Array:
    """A device array of cupy, as far as a launch looks at it."""

    def __init__(self, number=0):
        self.device = SimpleNamespace(id=number)


@pytest.fixture
def launched(monkeypatch):
    """Let launches be recorded: (kernel's configuration, arguments); `launched.pointer` is cupy's current stream."""
    record = SimpleNamespace(calls=[], pointer=0, streams=[])
    stream = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=record.pointer))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=Array, cuda=stream))

    def external_stream(pointer):
        record.streams.append(pointer)
        return f"stream {pointer}"

    monkeypatch.setattr(
        device,
        "cuda",
        SimpleNamespace(
            as_cuda_array=lambda array, sync: ("no wait" if not sync else "wait", array),
            external_stream=external_stream,
            default_stream=lambda: "default",
        ),
    )
    device._stream_at.cache_clear()

    class Kernel:
        def __getitem__(self, configuration):
            return lambda *arguments: record.calls.append((configuration, arguments))

    record.kernel = Kernel()
    yield record
    device._stream_at.cache_clear()


def test_the_host_waits_for_no_array(launched):
    first, second = Array(), Array()
    device.launch(launched.kernel, 1000, first, 3, second)
    ((blocks, threads, stream), arguments) = launched.calls[0]
    assert (blocks, threads, stream) == (-(-1000 // device.THREADS), device.THREADS, "default")
    assert arguments == (("no wait", first), 3, ("no wait", second))


def test_a_stream_is_made_once(launched):
    for launched.pointer in (5, 7, 5, 5):
        device.launch(launched.kernel, 1, 3, Array())  # whichever argument is an array
    assert [call[0][2] for call in launched.calls] == ["stream 5", "stream 7", "stream 5", "stream 5"]
    assert launched.streams == [5, 7]


def test_arrays_of_two_devices_are_refused(launched):
    with pytest.raises(ValueError, match=r"arrays of devices \[0, 1\] in one kernel"):
        device.launch(launched.kernel, 1, Array(0), Array(1))
    assert not launched.calls


def test_no_work_launches_nothing(launched):
    device.launch(launched.kernel, 0, Array())
    assert not launched.calls
