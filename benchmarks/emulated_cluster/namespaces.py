"""Hosts as namespaces, all of them inside one PID namespace, whose end is the end of everything.

A *host* is a process that sleeps in a network, a UTS and a mount namespace of its own: own interfaces, own name, own
/dev/shm, and names of all hosts in /etc/hosts. All hosts, and whatever runs on them, live in one PID namespace. Its
first process, the *root*, waits on a pipe that the maker of the cluster holds, and the kernel closes that pipe however
the maker ends. Then the root ends, the kernel kills every process in its PID namespace, and with their last process
all namespaces, interfaces and mounts are gone. None of them has a name outside, and no file is written anywhere, so
there is nothing to clean up. The root's own network namespace is the switch between the hosts (links.py).
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hybridmpi.errors import HybridMPIError

MARK = "emulated-cluster-of-"
"""Begins the name that the command line of every root carries; the maker's process id follows."""
START_SECONDS = 60.0
TEMPORARY = "/dev/shm/tmp"
"""TMPDIR of a host: Open MPI's session files, which clash between equal host names, die with the host's /dev/shm."""
COMMANDS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount"}

# IPv6 would send neighbour discovery over links whose bytes are counted. New namespaces inherit the machine's
# congestion control, so the figures would change from machine to machine: cubic is what Linux comes with; a machine
# that uses another may not allow cubic in a namespace, but reno, which is like it on links without loss.
SETTLE = """
ip link set lo up
[ ! -d /proc/sys/net/ipv6 ] || for name in all default; do echo 1 > /proc/sys/net/ipv6/conf/$name/disable_ipv6; done
control=/proc/sys/net/ipv4/tcp_congestion_control
{ echo cubic > $control; } 2> /dev/null || echo reno > $control
"""
HOST = f"""
mount -t tmpfs tmpfs /dev/shm
mkdir {TEMPORARY}
hostname "$0"
{SETTLE}
echo "ready $0 $$"
exec sleep infinity > /dev/null 2>&1
"""
# As a process that ignores SIGCHLD the root need not wait for orphans that end. `cat` ends with the pipe.
ROOT = f"""
mount -t tmpfs tmpfs /dev/shm
printf '%s' "$1" > /dev/shm/hosts
mount --bind /dev/shm/hosts /etc/hosts
host="$2"
shift 2
hostname switch
{SETTLE}
for name in "$@"; do
    unshare --net --uts --mount sh -ec "$host" "$name" &
done
echo "ready switch $$"
exec env --ignore-signal=CHLD cat > /dev/null 2>&1
"""
TRIAL = "ip link add one type veth peer name other && ip link add both type bridge && ip link set one master both &&\
 tc qdisc add dev one root tbf rate 1gbit burst 128kb latency 10ms"


def reason_against() -> str | None:
    """Return why this machine cannot make a cluster, None if it can. Local."""
    if os.geteuid() != 0:
        return "network namespaces need root: run it as root (sudo)"
    for command, package in COMMANDS.items():
        if shutil.which(command) is None:
            return f"the command '{command}' was not found: install {package}"
    new = ["unshare", "--fork", "--pid", "--net", "--uts", "--mount", "--mount-proc", "--kill-child"]
    trial = subprocess.run([*new, "sh", "-c", TRIAL], capture_output=True, text=True, timeout=START_SECONDS)
    if trial.returncode:
        words = " ".join(trial.stderr.split()) or f"exit status {trial.returncode}"
        return f"this kernel or container does not allow what a cluster needs: {words}"
    return None


class Namespaces:
    """The namespaces of a switch and of hosts of the given names, made at once and gone after `end()`. Local.

    `addresses`: IPv4 address by host name, for /etc/hosts. Raises HybridMPIError when something cannot be made.
    """

    def __init__(self, addresses: Mapping[str, str]) -> None:
        names = list(addresses)
        table = "".join(f"{address} {name}\n" for name, address in [("localhost", "127.0.0.1"), *addresses.items()])
        self.pids: dict[str, int] = {}
        """Process that holds a host, by name, as its number is inside the PID namespace."""
        self.root = subprocess.Popen(
            ["unshare", "--fork", "--pid", "--net", "--uts", "--mount", "--mount-proc", "--kill-child"]
            + ["sh", "-ec", ROOT, f"{MARK}{os.getpid()}", table, HOST, *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the maker, who then ends this in order
        )
        try:
            self._await(len(names) + 1)
        except BaseException:
            self.end()
            raise
        self.keep()

    def _await(self, count: int) -> None:
        """Read the line that every namespace writes when it is ready."""
        deadline = time.monotonic() + START_SECONDS
        text = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.root.stdout, selectors.EVENT_READ)
            while len(self.pids) < count:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                data = os.read(self.root.stdout.fileno(), 4096) if ready else b""
                text += data
                lines = text.decode(errors="replace").split("\n")
                wrong = next((line for line in lines[:-1] if not line.startswith("ready ")), None)
                if wrong is not None or not data:
                    what = wrong or (lines[-1] if ready else f"not ready after {START_SECONDS:.0f} s")
                    raise HybridMPIError(f"emulated cluster: the hosts' namespaces could not be made: {what}")
                self.pids = {name: int(pid) for _, name, pid in map(str.split, lines[:-1])}

    def enter(self, host: str | None, argv: Sequence[str], cwd: str = "/") -> list[str]:
        """Return the command line that runs `argv` on a host, None: on the switch, in directory `cwd`. Local."""
        if host is not None and host not in self.pids:
            raise HybridMPIError(f"emulated cluster: no host '{host}': expected one of {', '.join(self.pids)}")
        of = f"/proc/{self.root.pid}/ns"
        line = ["nsenter", f"--pid={of}/pid_for_children", f"--mount={of}/mnt", f"--net={of}/net", f"--uts={of}/uts"]
        if host is not None:
            line += ["nsenter", "--target", str(self.pids[host]), "--mount", "--net", "--uts"]
        return [*line, "env", f"--chdir={cwd}", *argv]

    def do(self, host: str | None, argv: Sequence[str], text: str = "") -> str:
        """Run a short command on a host, None: on the switch, with `text` as its input; return its output. Local.

        Raises HybridMPIError when it fails.
        """
        done = subprocess.run(self.enter(host, argv), input=text, capture_output=True, text=True, timeout=START_SECONDS)
        if done.returncode:
            where = host or "the switch"
            words = " ".join((done.stderr + done.stdout).split()) or f"exit status {done.returncode}"
            told = f"; it was told: {text}" if text else ""
            raise HybridMPIError(f"emulated cluster: '{' '.join(argv)}' failed on {where}: {words}{told}")
        return done.stdout

    def start(self, host: str | None, argv: Sequence[str]) -> subprocess.Popen:
        """Start a command on a host, None: on the switch; return it with a pipe of all that it writes. Local."""
        return subprocess.Popen(
            self.enter(host, argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def members(self) -> set[int]:
        """Return all processes of the cluster that still run, by their numbers outside. Local."""
        space = _link(f"/proc/{self.root.pid}/ns/pid_for_children")
        numbers = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
        return {pid for pid in numbers if space and _link(f"/proc/{pid}/ns/pid") == space}

    def keep(self) -> None:
        """Let what runs now live as long as the cluster does. Local."""
        self._kept = self.members()

    def end_jobs(self) -> None:
        """Kill everything that was started since `keep`. Local."""
        deadline = time.monotonic() + START_SECONDS
        while left := self.members() - self._kept:
            for pid in left:
                _kill(pid)
            if time.monotonic() > deadline:
                raise HybridMPIError(f"emulated cluster: processes {sorted(left)} do not end")
            time.sleep(0.005)

    def end(self) -> None:
        """End the hosts and all that runs on them; return when the kernel has. A second call does nothing. Local."""
        self.root.stdin.close()
        try:
            self.root.wait(5)
        except subprocess.TimeoutExpired:
            self.root.kill()  # the root of the PID namespace follows, by --kill-child
            self.root.wait()
        self.root.stdout.close()


def end_leftovers() -> tuple[list[int], list[int]]:
    """End the clusters whose makers are gone; return (makers of those, makers of clusters that are in use). Local.

    There is one to end only where a child of a maker that was killed still holds the pipe.
    """
    ended, used = [], []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        maker = _maker(int(entry))
        if maker is None:
            continue
        if _parent(int(entry)) == maker:
            used.append(maker)
        else:
            _kill(int(entry))
            ended.append(maker)
    return sorted(ended), sorted(used)


def _maker(pid: int) -> int | None:
    """Return who made the cluster of which process `pid` is the `unshare` that holds the root; None for others."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return None
    name = next((word for word in words if word.startswith(MARK)), "")
    return int(name.removeprefix(MARK)) if words[0] == "unshare" and name else None


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
