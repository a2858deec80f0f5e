"""A real Slurm cluster on this machine, for tests.

It runs munged, slurmctld and one slurmd per node as root, without systemd and cgroups. Observed
with Debian's Slurm 22.05:

* A cluster is ready after about a second. A batch job starts as soon as it is submitted; a job that
  depends on another starts about a second after it.
* A requeued job waits for the lifetime of a credential, which is two minutes, until `release` lets
  it start in the next second. In the second of the requeueing itself, the node mistakes the new
  credential for the revoked one, and the job fails.
* A time limit is in whole minutes, and the controller looks at time limits every 30 seconds. So
  `--signal=B:USR1@SECONDS` arrives up to a minute early, or up to half a minute after a change of
  the time limit that makes it due.
* Without accounting there is no sacct. `scontrol show job` lists ended jobs for `MinJobAge`.
"""

import contextlib
import ctypes
import os
import random
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rampcli.machine.lifeline import die_with_parent

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
KILL_WAIT_S = 120
"""How long a job that is asked to end has to save. On a busy machine, that takes long."""
PATIENCE_S = 300.0
"""How long tests wait for something that takes seconds on an idle machine."""
LOOK_EVERY_S = 0.1
PR_SET_CHILD_SUBREAPER = 36
# The values of these fields extend to the end of the line, and may contain anything.
WHOLE_LINES = ("Command", "WorkDir", "StdErr", "StdIn", "StdOut", "Comment", "TresPerNode")

CONFIGURATION = """\
ClusterName=emulated
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ReturnToService=1
JobRequeue=1
KillWait={kill_wait_s}
KillOnBadExit=0
OverTimeLimit=0
SlurmdTimeout=300
MinJobAge=600
MessageTimeout=60
FirstJobId={first_job}
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 MaxTime=INFINITE DefaultTime=60 State=UP
PartitionName=urgent Nodes=ALL PriorityTier=10 MaxTime=INFINITE DefaultTime=60 State=UP
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus}"
    " RealMemory=16000 Gres=gpu:{gpus} State=UNKNOWN"
)


class Cluster:
    """Nodes `node1`, `node2` ... with fake GPUs, and two partitions.

    Jobs of the partition `urgent` preempt and requeue jobs of `main`.
    """

    def __init__(self, folder: Path, *, nodes: int, cpus: int, gpus: int) -> None:
        self.folder = folder
        self.nodes = [f"node{number}" for number in range(1, nodes + 1)]
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "SBATCH", "SRUN"))
        }
        self.environment["SLURM_CONF"] = str(folder / "slurm.conf")
        self._configure(cpus, gpus)

    def _configure(self, cpus: int, gpus: int) -> None:
        for name in ("state", "log", "dev", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
        for gpu in range(gpus):
            os.mknod(
                self.folder / f"dev/nvidia{gpu}", stat.S_IFCHR | 0o666, os.makedev(1, 3)
            )  # a second /dev/null
        (self.folder / "gres.conf").write_text(
            f"AutoDetect=off\nName=gpu File={self.folder}/dev/nvidia[0-{gpus - 1}]\n"
        )
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        host = socket.gethostname().split(".")[0]
        port, *ports = free_ports(1 + len(self.nodes))
        nodes = [
            NODE.format(name=name, host=host, port=at, cpus=cpus, gpus=gpus)
            for name, at in zip(self.nodes, ports, strict=True)
        ]
        facts = {
            "host": host,
            "port": port,
            "folder": self.folder,
            "kill_wait_s": KILL_WAIT_S,
            # The ports of workers under srun depend on the job, and another cluster may run here.
            "first_job": random.randrange(1, 800_000),
        }
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(**facts, nodes="\n".join(nodes))
        )

    def run(self, *words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs one of Slurm's commands.

        Raises:
            AssertionError: it failed; the message is its output.
        """
        done = subprocess.run(
            words, env=self.environment, text=True, capture_output=True, check=False
        )
        assert not check or done.returncode == 0, f"{words}: {done.stderr}"
        return done

    def submit(self, *words: str | Path) -> str:
        """Submits a job with sbatch, and returns its ID."""
        return self.run("sbatch", "--parsable", *words).stdout.strip()

    def job(self, job: str) -> dict[str, str]:
        """Returns what Slurm knows about a job, until ten minutes after its end.

        Fields include JobState, Reason, Dependency, Restarts, NodeList and ExitCode.
        """
        return parse_job(self.run("scontrol", "show", "job", job).stdout)

    def jobs(self) -> dict[str, str]:
        """Returns the states of jobs that wait, run or ended within the last ten minutes."""
        return dict(
            line.split()
            for line in self.run(
                "squeue", "--noheader", "--states=all", "--format=%A %T"
            ).stdout.splitlines()
        )

    def wait_for(self, job: str, *states: str, deadline_s: float = PATIENCE_S) -> dict[str, str]:
        """Waits until a job is in one of some states, and returns it as `job` does.

        Raises:
            AssertionError: it is in another state after `deadline_s` seconds.
        """
        until = time.monotonic() + deadline_s
        while (facts := self.job(job))["JobState"] not in states:
            assert time.monotonic() < until, (
                f"job {job} is {facts['JobState']} ({facts['Reason']}) not {' or '.join(states)}"
            )
            time.sleep(LOOK_EVERY_S)
        return facts

    def release(self, job: str) -> None:
        """Lets a requeued job start in the next second."""
        self.run("scontrol", "update", f"jobid={job}", "StartTime=now+1")

    def set_time_limit(self, job: str, *, minutes: int) -> None:
        self.run("scontrol", "update", f"jobid={job}", f"TimeLimit={minutes}")

    def end_soon(self, job: str, *, within_s: int) -> None:
        """Sets the time limit of a running job: it has these seconds left, or a minute less."""
        hours, minutes, seconds = map(int, self.job(job)["RunTime"].split(":"))
        self.set_time_limit(job, minutes=(3600 * hours + 60 * minutes + seconds + within_s) // 60)

    def set_down(self, node: str) -> None:
        """Sets a node down as if it had failed. Its jobs get SIGTERM and are requeued."""
        self.run("scontrol", "update", f"nodename={node}", "state=DOWN", "reason=test")

    def resume(self, node: str) -> None:
        self.run("scontrol", "update", f"nodename={node}", "state=RESUME")

    def preempt(self, *words: str | Path) -> str:
        """Submits a job that preempts all nodes of `main`. By default it ends after a second."""
        return self.submit(
            "--partition=urgent",
            f"--nodes={len(self.nodes)}",
            "--exclusive",
            *(words or ("--output=/dev/null", "--wrap=sleep 1")),
        )

    def occupy(self) -> str:
        """Submits a job that keeps all nodes busy, and waits until it runs. Returns its ID."""
        job = self.submit(
            f"--nodes={len(self.nodes)}",
            "--exclusive",
            "--output=/dev/null",
            "--wrap=exec sleep 1000",
        )
        self.wait_for(job, "RUNNING")
        return job

    def clear(self) -> None:
        """Cancels waiting jobs, kills running ones, and waits until all nodes are idle.

        Raises:
            AssertionError: they are not idle after `PATIENCE_S`.
        """
        until = time.monotonic() + PATIENCE_S
        while not self.wait_until_idle(0.2):
            assert time.monotonic() < until, (
                self.run("squeue").stdout + self.run("sinfo", "--Node", "--long").stdout
            )
            self._end_jobs()
            for node, state in zip(self.nodes, self._states_of_nodes(), strict=True):
                if state.startswith(("down", "drain")):
                    self.resume(node)
        self._end_jobs()

    def _end_jobs(self) -> None:
        if jobs := self.run("squeue", "--noheader", "--format=%A").stdout.split():
            self.run("scancel", "--state=PENDING", *jobs, check=False)
            # Before they are cancelled: jobs that are asked to end get no more signals.
            self.run("scancel", "--signal=KILL", "--batch", *jobs, check=False)
            self.run("scancel", *jobs, check=False)

    def _states_of_nodes(self) -> list[str]:
        return self.run(
            "sinfo", "--noheader", "--Node", "--partition=main", "--format=%T", check=False
        ).stdout.split()

    def wait_until_idle(self, deadline_s: float = 20) -> bool:
        until = time.monotonic() + deadline_s
        while self._states_of_nodes() != ["idle"] * len(self.nodes):
            if time.monotonic() > until:
                return False
            time.sleep(LOOK_EVERY_S)
        return True


def parse_job(text: str) -> dict[str, str]:
    """Parses the output of `scontrol show job` for one job."""
    facts = {}
    for line in text.splitlines():
        name, _, value = line.strip().partition("=")
        if name in WHOLE_LINES:
            facts[name] = value
        else:
            facts |= dict(re.findall(r"(\S+?)=(\S*)", line))
    return facts


def free_ports(count: int) -> list[int]:
    """Returns unused ports between those of workers under srun and the ephemeral ones."""
    ports: list[int] = []
    for port in random.sample(range(30000, 32768), 1000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            break
    return ports


@contextlib.contextmanager
def start_cluster(*, nodes: int = 5, cpus: int = 8, gpus: int = 2) -> Iterator[Cluster]:
    """Starts a cluster in a temporary folder, and removes it afterwards.

    It is also removed if this process is killed.
    """
    for _ in range(3):  # another process may take a free port before Slurm does
        folder = Path(
            tempfile.mkdtemp(prefix="slurm-", dir="/tmp")
        )  # short, because paths of sockets are limited
        folder.chmod(0o755)
        cluster = Cluster(folder, nodes=nodes, cpus=cpus, gpus=gpus)
        keeper = subprocess.Popen(
            [sys.executable, __file__, folder, *cluster.nodes],
            env=cluster.environment,
            start_new_session=True,
        )
        try:
            if _come_up(cluster, keeper):
                yield cluster
                return
        finally:
            keeper.terminate()
            keeper.wait()
            log = (
                (folder / "log/slurmctld.log").read_text()
                if (folder / "log/slurmctld.log").exists()
                else ""
            )
            shutil.rmtree(folder)
    raise AssertionError(f"the cluster does not start:\n{log[-3000:]}")


def _come_up(cluster: Cluster, keeper: subprocess.Popen[bytes]) -> bool:
    until = time.monotonic() + PATIENCE_S
    while keeper.poll() is None and time.monotonic() < until:
        if cluster.wait_until_idle(0):
            return True
        time.sleep(0.05)
    return False


def keep(folder: Path, nodes: Sequence[str]) -> None:
    """Runs the daemons until this process gets SIGTERM, its parent ends or a daemon ends.

    Then it ends all jobs and daemons. Jobs leave the daemons' process groups and sessions, but as a
    subreaper, this process stays their ancestor.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        daemons = [
            _start(
                folder,
                "munged",
                "--foreground",
                *(f"--{name}={folder}/munge.{end}" for name, end in MUNGE),
            )
        ]
        _wait_for_socket(socket.AF_UNIX, str(folder / "munge.sock"))
        daemons.append(_start(folder, "slurmctld", "-D"))
        port = int(
            re.search(r"^SlurmctldPort=(\d+)", (folder / "slurm.conf").read_text(), re.MULTILINE)[1]
        )
        _wait_for_socket(socket.AF_INET, ("127.0.0.1", port))
        daemons += [_start(folder, "slurmd", "-D", "-N", node) for node in nodes]
        while os.getppid() == parent and not _reap() & set(daemons):
            time.sleep(0.1)
    finally:
        _end_descendants()
        if os.getppid() != parent:  # the parent was killed and cannot remove the folder
            shutil.rmtree(folder)


MUNGE = (
    ("key-file", "key"),
    ("socket", "sock"),
    ("pid-file", "pid"),
    ("log-file", "log"),
    ("seed-file", "seed"),
)


def _start(folder: Path, *command: str) -> int:
    with (folder / "log/daemons.txt").open("a") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent
        )
    process.returncode = 0  # `_reap` waits for it, not subprocess
    return process.pid


def _wait_for_socket(family: socket.AddressFamily, address: str | tuple[str, int]) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        with socket.socket(family) as probe:
            if probe.connect_ex(address) == 0:
                return
        time.sleep(0.05)


def _reap() -> set[int]:
    ended = set()
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            ended.add(pid)
    return ended


def _end_descendants() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while family := descendants(os.getpid()):
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.01)


def descendants(ancestor: int) -> set[int]:
    """Returns the IDs of all descendants of a process."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    found, size = {ancestor}, 0
    while len(found) > size:
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {ancestor}


if __name__ == "__main__":
    keep(Path(sys.argv[1]), sys.argv[2:])
