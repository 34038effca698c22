"""A private Slurm for tests: one controller and two nodes with two fake GPUs each, all on this host.

    with cluster(folder): ...      # sets SLURM_CONF; every daemon is gone afterwards
    with cluster(folder, accounting=True): ...      # and a database of jobs, which the controller forgets in seconds

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
ACCOUNTING = ("mariadbd", "mariadb-install-db", "slurmdbd", "sacctmgr", "sacct")
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
_CONF_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge.socket
MinJobAge=2
"""
_CONF_DATABASE = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdPort={port}
SlurmUser={user}
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StorageLoc=slurm_acct
"""


def missing(accounting: bool = False) -> list[str]:
    """The commands that a cluster needs and this machine lacks."""
    return [c for c in COMMANDS + ACCOUNTING * accounting if shutil.which(c, path=_path()) is None]


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
def cluster(folder: Path, accounting: bool = False) -> Iterator[None]:
    """A running cluster that this process and its children talk to.

    Args:
        folder: short (sockets lie in it), of this user alone; configuration, state and logs.
        accounting: whether `sacct` answers; the controller then forgets a job within half a minute of its end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    (folder / "state").mkdir()
    *ports, port = free_ports(4)
    user = pwd.getpwuid(os.getuid()).pw_name
    conf = _CONF.format(host=socket.gethostname(), user=user, folder=folder, ports=ports, grace=GRACE)
    (folder / "slurm.conf").write_text(conf + _CONF_ACCOUNTING.format(folder=folder, port=port) * accounting)
    (folder / "gres.conf").write_text("NodeName=n[1-2] Name=gpu File=/dev/null,/dev/zero\n")
    (folder / "slurmdbd.conf").touch(mode=0o600)  # slurmdbd refuses one that others can read
    (folder / "slurmdbd.conf").write_text(_CONF_DATABASE.format(user=user, folder=folder, port=port))
    before = {name: os.environ.get(name) for name in ("SLURM_CONF", "PATH")}
    os.environ |= {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}
    daemons: list[subprocess.Popen] = []
    try:
        _start(folder, daemons, user, accounting)
        yield
    finally:
        _stop(daemons)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _start(folder: Path, daemons: list[subprocess.Popen], user: str, accounting: bool) -> None:
    log = (folder / "daemons.log").open("ab")

    def start(*command, **env) -> None:
        options = {"stdout": log, "stderr": log, "start_new_session": True, "env": os.environ | env}
        daemons.append(subprocess.Popen(command, **options))

    key = folder / "munge.key"
    subprocess.run(["mungekey", "--create", f"--keyfile={key}"], check=True)
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("log", "pid", "seed")]
    start("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={key}", *files)
    _until((folder / "munge.socket").exists, daemons, folder)
    if accounting:
        data, db_socket = f"--datadir={folder}/database", folder / "database.socket"
        root = ["--auth-root-authentication-method=socket", f"--auth-root-socket-user={user}", "--skip-test-db"]
        install = ["mariadb-install-db", "--no-defaults", data, f"--user={user}", *root]
        subprocess.run(install, check=True, stdout=log, stderr=log)
        sizes = ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M", "--innodb-flush-log-at-trx-commit=0"]
        where = [data, f"--socket={db_socket}", f"--pid-file={folder}/database.pid", "--skip-networking"]
        start("mariadbd", "--no-defaults", f"--user={user}", *where, *sizes)
        _until(db_socket.exists, daemons, folder)
        start("slurmdbd", "-D", MYSQL_UNIX_PORT=str(db_socket))  # how the client library finds the socket
        _until(_registered, daemons, folder)
    start("slurmctld", "-D", "-c")
    for node in ("n1", "n2"):
        (folder / f"spool-{node}").mkdir()
        start("slurmd", "-D", "-N", node)
    _until(lambda: _output("sinfo", "-h", "-N", "-p", "low", "-o", "%T").split() == ["idle"] * 2, daemons, folder)


def _registered() -> bool:
    """Whether the database knows the cluster, which it is told of here."""
    _output("sacctmgr", "--immediate", "add", "cluster", "test")
    return _output("sacctmgr", "--noheader", "--parsable2", "list", "cluster", "format=cluster").strip() == "test"


def _stop(daemons: list[subprocess.Popen]) -> None:
    _output("scancel", "--state=RUNNING,PENDING,SUSPENDED", f"--user={os.getuid()}")
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
