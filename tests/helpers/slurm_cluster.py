"""A private Slurm for tests: one controller and two nodes with two fake GPUs each, all on this host.

    with cluster() as folder: ...      # sets SLURM_CONF; every daemon is gone afterwards

Two partitions on the same nodes: `low` (the default), whose jobs are requeued after a grace time when `high` wants the node.
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from conftest import need

COMMANDS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "sinfo", "munged", "mungekey")
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
PartitionName=low Nodes=n1,n2 Default=YES MaxTime=600 PriorityTier=1 GraceTime=30 State=UP
PartitionName=high Nodes=n1,n2 MaxTime=600 PriorityTier=10 PreemptMode=OFF State=UP
"""


def free_ports(count: int) -> list[int]:
    """Return so many ports of the loopback interface that nothing listens on."""
    with contextlib.ExitStack() as sockets:
        probes = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextlib.contextmanager
def cluster() -> Iterator[Path]:
    """Run a cluster that this process and its children talk to; yields the folder of its configuration, state and logs."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    missing = [command for command in COMMANDS if shutil.which(command, path=path) is None]
    need(not missing, f"Slurm (lacks {', '.join(missing)}; see .ci/run)")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: munge's socket lies in it
    folder.chmod(0o755)
    (folder / "state").mkdir()
    user, host = pwd.getpwuid(os.getuid()).pw_name, socket.gethostname()
    conf = _CONF.format(host=host, user=user, folder=folder, ports=free_ports(3))
    (folder / "slurm.conf").write_text(conf)
    (folder / "gres.conf").write_text("NodeName=n[1-2] Name=gpu File=/dev/null,/dev/zero\n")
    daemons: list[subprocess.Popen] = []
    with mock.patch.dict(os.environ, {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}):
        try:
            _start(folder, daemons)
            yield folder
        finally:
            _stop(daemons)
    shutil.rmtree(folder, ignore_errors=True)


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
    _output("scancel", f"--user={os.getuid()}")
    with contextlib.suppress(AssertionError):
        _until(lambda: not _output("squeue", "-h").strip(), [], None, seconds=20)
    for daemon in reversed(daemons):  # one after another: the later need the earlier to end well
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _until(true, daemons: list[subprocess.Popen], folder: Path | None, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not true():
        dead = [d.args[0] for d in daemons if d.poll() is not None]
        assert not dead and time.monotonic() < end, f"{dead or 'Slurm does not come up'}: see {folder}/*.log"
        time.sleep(0.1)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
