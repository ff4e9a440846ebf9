"""A program whose rank 0 fails where its last word cannot be said: python last_word.py KIND. The others wait for it."""

import os
import signal
import sys
import threading
import time

import hybridmpi as hm
from hybridmpi import failures


class UnspeakableError(Exception):
    """An error of whom nothing can be said."""

    def __str__(self):
        raise ValueError("no text")

    __repr__ = __str__


def redirect(kind):
    """Make stdout and stderr what `kind` says, with something in stdout's buffer."""
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - buffered, also where PYTHONUNBUFFERED is set
    sys.stdout.write("in the buffer")
    if kind == "closed":
        os.close(1)
        os.close(2)
    elif kind == "none":
        sys.stdout = sys.stderr = None
    elif kind == "full":
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, 1)
        os.dup2(full, 2)
    elif kind in ("broken", "stuck"):
        read, write = os.pipe()
        if kind == "broken":
            os.close(read)
        else:  # nobody reads it, and it takes no more
            os.set_blocking(write, False)
            try:
                while True:
                    os.write(write, bytes(4096))
            except BlockingIOError:
                os.set_blocking(write, True)
        os.dup2(write, 1)
        os.dup2(write, 2)


def interrupt():
    """Send this process interrupts, as somebody does who has no patience."""
    while True:
        time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)


def main(world):
    if world.compute.Get_rank() == 0:
        kind = sys.argv[1]
        redirect(kind)
        if kind == "unspeakable":
            raise UnspeakableError
        if kind == "interrupted":
            hm.errors.HybridMPIError.exit_code = 7  # the code of the error, not of the interrupt
            failures.LAST_WORD_SECONDS = 0.5
            error = hm.errors.HybridMPIError("the last word")
            threading.Timer(0.2, interrupt).start()
            raise error
        raise hm.errors.HybridMPIError("the last word")
    world.barrier()


if __name__ == "__main__":
    hm.run(main, servers=0)
