"""A private Slurm for tests: one controller and two nodes with two fake GPUs each, all on this host, without accounting.

    with cluster(folder) as slurm: ...      # sets SLURM_CONF; every daemon is gone afterwards

Two partitions on the same nodes: `low` (the default), whose jobs are requeued after a grace time when `high` wants the node.
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

COMMANDS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "sinfo", "munged", "mungekey")
GRACE = 30  # seconds a preempted job gets
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdParameters=config_overrides
EnforcePartLimits=ALL
KillWait=5
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=12000 Gres=gpu:2 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=12000 Gres=gpu:2 State=UNKNOWN
PartitionName=low Nodes=n1,n2 Default=YES MaxTime=600 PriorityTier=1 GraceTime={grace} State=UP
PartitionName=high Nodes=n1,n2 MaxTime=600 PriorityTier=10 PreemptMode=OFF State=UP
"""


def missing() -> list[str]:
    """The commands that a cluster needs and this machine lacks."""
    return [c for c in COMMANDS if shutil.which(c, path=_path()) is None]


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])


def free_ports(count: int) -> list[int]:
    """So many ports of the loopback interface that nothing listens on."""
    with contextlib.ExitStack() as sockets:
        probes = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[None]:
    """A running cluster that this process and its children talk to.

    Args:
        folder: short (a socket lies in it), of this user alone; configuration, state and logs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    (folder / "state").mkdir()
    ports = free_ports(3)
    user = pwd.getpwuid(os.getuid()).pw_name
    conf = _CONF.format(host=socket.gethostname(), user=user, folder=folder, ports=ports, grace=GRACE)
    (folder / "slurm.conf").write_text(conf)
    (folder / "gres.conf").write_text("NodeName=n[1-2] Name=gpu File=/dev/null,/dev/zero\n")
    before = {name: os.environ.get(name) for name in ("SLURM_CONF", "PATH")}
    os.environ |= {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}
    daemons: list[subprocess.Popen] = []
    try:
        _start(folder, daemons)
        yield
    finally:
        _stop(daemons)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _start(folder: Path, daemons: list[subprocess.Popen]) -> None:
    log = (folder / "daemons.log").open("ab")

    def start(*command) -> None:
        daemons.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))

    key = folder / "munge.key"
    subprocess.run(["mungekey", "--create", f"--keyfile={key}"], check=True)
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("log", "pid", "seed")]
    start("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={key}", *files)
    _until((folder / "munge.socket").exists, daemons, folder)
    start("slurmctld", "-D", "-c")
    for node in ("n1", "n2"):
        (folder / f"spool-{node}").mkdir()
        start("slurmd", "-D", "-N", node)
    _until(lambda: _output("sinfo", "-h", "-N", "-p", "low", "-o", "%T").split() == ["idle"] * 2, daemons, folder)


def _stop(daemons: list[subprocess.Popen]) -> None:
    _output("scancel", "--state=RUNNING,PENDING,SUSPENDED", f"--user={os.getuid()}")
    with contextlib.suppress(AssertionError):
        _until(lambda: not _output("squeue", "-h").strip(), [], None, seconds=20)
    for daemon in reversed(daemons):
        daemon.send_signal(signal.SIGTERM)
    for daemon in daemons:
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()


def _until(true, daemons: list[subprocess.Popen], folder: Path | None, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        dead = [d.args[0] for d in daemons if d.poll() is not None]
        assert not dead and time.monotonic() < end, f"{dead or 'Slurm does not come up'}: see {folder}/*.log"
        time.sleep(0.1)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
