"""A real Slurm for tests: munge, slurmctld and slurmd from Debian's packages, on the hosts of an emulated cluster.

    with SlurmCluster(folder) as slurm:
        outcome = slurm.run("srun -N 2 -n 4 --mpi=pmix python program.py".split())
        job = slurm.submit("job.sh", "an argument")
        job.wait()

The hosts n1 to n4 (benchmarks/emulated_cluster) have networks, names and /dev/shm of their own, as nodes do: so ports
are free, Open MPI finds host names equal to node names, and shared memory ends at a node. All of them are in one PID
namespace, which goes however its maker ends, daemons, strayed steps and ranks with it. Slurm itself keeps its files
in `folder`, and needs no systemd, cgroups, database or configuration of the machine. n1 is also where slurmctld runs
and where users are.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launching import ROOT, Outcome, run_process

sys.path.insert(0, str(ROOT / "benchmarks"))

from emulated_cluster import Cluster  # noqa: E402
from emulated_cluster import reason_against as reason_against_hosts  # noqa: E402

HEAD = "n1"
CPUS = 8
"""Of a node, as Slurm believes; there may be fewer."""
START_SECONDS = 30.0
SITE = {
    # The nodes share the cores of one machine, which no MPI can know.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMP_NUM_THREADS": "1",
    # Without a look for fabrics ranks start in a second less.
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm,tcp",
}
"""What the users of this Slurm have in their environment."""
COMMANDS = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "sbatch": "slurm-client",
}
"""What is needed, and Debian's package of it."""
PLACES = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY")

CONFIGURATION = """
ClusterName=tests
SlurmctldHost={head}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued batch job waits until its credential has expired, by default for two minutes, at least for five seconds.
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
# Two nodes with one folder for PMIx's files would take each other's.
TmpFS={folder}/tmp.%n
# Nothing that needs cgroups or a database.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# Nodes may have more CPUs than there are.
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
# Quick, for tests.
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,bf_hetjob_immediate,sched_min_interval=0,batch_sched_delay=0
ReturnToService=2
KillWait=5
InactiveLimit=0
"""
NODE = "NodeName={name} NodeAddr={address} CPUs={cpus} CoresPerSocket={cpus} RealMemory=1000 Features={feature}\n"


def find_pmix() -> Path | None:
    """Return the library with which Slurm offers PMIx; None where Debian's package of it is missing. Local."""
    return next(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so.2"), None)


def reason_against() -> str | None:
    """Return why this machine cannot have a Slurm of its own, None if it can. Local."""
    for command, package in COMMANDS.items():
        if shutil.which(command, path=PLACES) is None:
            return f"the command '{command}' was not found: install {package}"
    if find_pmix() is None:
        return "the library libpmix.so.2 was not found: install libpmix2"
    if reason := reason_against_hosts():
        return f"its nodes would be hosts of an emulated cluster: {reason}"
    return None


class SlurmCluster:
    """A Slurm of so many nodes that is up inside a `with` statement, and gone after it however it ends.

    `folder`: where it keeps its files, empty. Raises AssertionError, with its logs, when it does not come up.
    """

    def __init__(self, folder: Path, nodes: int = 4) -> None:
        self.folder = folder
        self.nodes = nodes
        self.hosts = Cluster(hosts=nodes)

    def __enter__(self) -> SlurmCluster:
        self.hosts.__enter__()
        try:
            self._start()
        except BaseException:
            self.hosts.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.hosts.down()

    def _start(self) -> None:
        folder, layout, do = self.folder, self.hosts.layout, self.hosts.spaces.do
        folder.chmod(0o755)
        address = layout.address(HEAD)
        text = CONFIGURATION.format(folder=folder, head=HEAD, address=address)
        for number, name in enumerate(layout.names):
            (folder / f"spool.{name}").mkdir()
            (folder / f"tmp.{name}").mkdir()
            feature = "small" if number < self.nodes // 2 else "large"
            text += NODE.format(name=name, address=layout.address(name), cpus=CPUS, feature=feature)
        text += "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=NO\n"
        (folder / "slurm.conf").write_text(text)
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        self._offer_pmix()
        for name in layout.names:
            self._start_munge(name)
        do(HEAD, ["env", f"PATH={PLACES}", "slurmctld", "-f", str(folder / "slurm.conf")])
        for name in layout.names:
            do(name, ["env", f"PATH={PLACES}", "slurmd", "-f", str(folder / "slurm.conf"), "-N", name])
        deadline = time.monotonic() + START_SECONDS
        while self.idle() < self.nodes:
            if time.monotonic() > deadline:
                raise AssertionError(f"Slurm: nodes are not idle after {START_SECONDS:.0f} s\n{self.logs()}")
            time.sleep(0.05)
        self.hosts.spaces.keep()

    def _start_munge(self, name: str) -> None:
        """Start the munged of a node, at the socket that is its own in all nodes' configuration.

        One for all of them would refuse what nodes forward to each other as a replay: it had seen the credential.
        """
        folder, do = self.folder, self.hosts.spaces.do
        place = folder / "munge"
        place.mkdir(exist_ok=True)
        do(name, ["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(place)])
        files = {"socket": "socket", "pid-file": "pid", "seed-file": "seed"}
        munged = [f"--{option}={place}/{ending}" for option, ending in files.items()]
        munged += [f"--key-file={folder}/munge.key", f"--log-file={folder}/munge.{name}.log"]
        # Its own checks of the folders above are for keys that last.
        do(name, ["env", f"PATH={PLACES}", "munged", "--force", *munged])

    def _offer_pmix(self) -> None:
        """Let the nodes see a libpmix.so: Slurm's plugin loads PMIx by this name, but only libpmix-dev has it."""
        place, library = self.folder / "pmix", find_pmix()
        shutil.copytree(library.parent, place, symlinks=True, ignore=shutil.ignore_patterns("libpmix.so"))
        (place / "libpmix.so").symlink_to(library.name)
        for name in self.hosts.layout.names:
            self.hosts.spaces.do(name, ["mount", "--bind", str(place), str(library.parent)])

    def idle(self) -> int:
        """Return how many nodes have nothing to do."""
        found = self.run(["sinfo", "-h", "-N", "-t", "idle", "-o", "%N"], check=False)
        return len(found.output.split()) if found.code == 0 else 0

    def logs(self) -> str:
        """Return the last lines of every daemon's log."""
        texts = {path.name: path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log"))}
        return "\n".join(f"{name}:\n" + "\n".join(text.splitlines()[-8:]) for name, text in texts.items())

    def enter(self, argv: Sequence[str], cwd: Path = ROOT) -> list[str]:
        """Return the command line that runs `argv` as a user of this Slurm, on n1. Local."""
        environment = {"SLURM_CONF": f"{self.folder}/slurm.conf", **SITE}
        assignments = [f"{name}={value}" for name, value in environment.items()]
        return self.hosts.spaces.enter(HEAD, ["env", *assignments, *argv], str(cwd))

    def run(
        self,
        argv: Sequence[str],
        timeout: float = 60,
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        check: bool = True,
    ) -> Outcome:
        """Run a command as a user of this Slurm and return how it ended; `check`: fail unless its exit code is 0."""
        outcome = run_process(self.enter(argv, cwd), timeout, dict(env or {}))
        assert outcome.code == 0 or not check, f"{' '.join(argv)}: {outcome}\n{self.logs()}"
        return outcome

    def submit(self, *argv: str, output: Path, env: Mapping[str, str] | None = None) -> Job:
        """Submit a batch job, by the arguments of sbatch; return it. `output`: the file for what it writes."""
        line = ["sbatch", "--parsable", f"--output={output}", "--open-mode=append", *argv]
        return Job(self, self.run(line, env=env).output.split(";")[0].strip(), output)

    def end_jobs(self) -> None:
        """Cancel all jobs, kill what stays, and wait until every node is idle again."""
        self.run(["scancel", "--user=root", "--quiet"], check=False)
        deadline = time.monotonic() + START_SECONDS
        while self.idle() < self.nodes:
            self.hosts.spaces.end_jobs()
            assert time.monotonic() < deadline, f"nodes do not become idle\n{self.logs()}"
            time.sleep(0.1)


@dataclass
class Job:
    """A batch job, and the file with what it writes. Of an array or a heterogeneous job, `number` names one part."""

    slurm: SlurmCluster
    number: str
    output: Path

    def show(self) -> dict[str, str]:
        """Return what Slurm says of the job."""
        text = self.slurm.run(["scontrol", "show", "job", "--oneliner", self.number]).output
        return dict(field.split("=", 1) for field in text.split() if "=" in field)

    def written(self) -> str:
        """Return what the job has written so far."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def wait_for(self, pattern: str, timeout: float = 60) -> re.Match[str]:
        """Wait until the job has written what `pattern` matches; return the first match."""
        deadline = time.monotonic() + timeout
        while (found := re.search(pattern, self.written(), re.MULTILINE)) is None:
            assert time.monotonic() < deadline, f"no '{pattern}' after {timeout} s\n{self.report()}"
            assert self.show()["JobState"] not in ENDED or re.search(pattern, self.written(), re.MULTILINE), (
                f"ended without '{pattern}'\n{self.report()}"
            )
            time.sleep(0.05)
        return found

    def wait(self, timeout: float = 60) -> tuple[str, int]:
        """Wait for the end of the job; return its state and its exit code."""
        deadline = time.monotonic() + timeout
        while (now := self.show())["JobState"] not in ENDED:
            assert time.monotonic() < deadline, f"no end after {timeout} s\n{self.report()}"
            time.sleep(0.2)
        return now["JobState"], int(now["ExitCode"].split(":")[0])

    def hasten(self, restarts: int, timeout: float = 60) -> None:
        """Wait until the job is back in the queue so often, and let it start soon, without the whole of Slurm's pause.

        Not at once: a node refuses a job in the second in which it has revoked the credential of its last start.
        """
        deadline = time.monotonic() + timeout
        while int((now := self.show())["Restarts"]) < restarts or now["JobState"] != "PENDING":
            assert time.monotonic() < deadline and now["JobState"] not in ENDED, f"not requeued\n{self.report()}"
            time.sleep(0.1)
        self.slurm.run(["scontrol", "update", f"JobId={self.number}", "StartTime=now+2"])

    def pids(self, host: str) -> dict[int, int]:
        """Return the process of every rank of the first step that runs on `host`, by rank."""
        conf = f"SLURM_CONF={self.slurm.folder}/slurm.conf"
        text = self.slurm.hosts.spaces.do(host, ["env", conf, "scontrol", "listpids", f"{self.number}.0"])
        rows = [line.split() for line in text.splitlines()[1:]]
        return {int(rank): int(pid) for pid, _, _, _, rank in rows if rank.isdigit()}

    def cancel(self, *options: str) -> None:
        """Call scancel with `options`, such as -s USR1, for the job."""
        self.slurm.run(["scancel", *options, self.number])

    def report(self) -> str:
        """Return what Slurm says, what the job has written, and the daemons' logs."""
        return f"{self.show()}\n{self.written()}\n{self.slurm.logs()}"
