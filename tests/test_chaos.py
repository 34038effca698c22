"""A sweep while processes are killed and stopped, its disk fills up or is read-only: nothing is lost or mixed.

`CHAOS_SEED=7 pytest tests/test_chaos.py -s` repeats what another seed did.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import chaos
import pytest
import slurm_cluster
from conftest import need

pytestmark = [pytest.mark.slow, pytest.mark.rare]

SEED = int(os.environ.get("CHAOS_SEED", "1"))


def test_trainings_in_local_processes_survive_thirty_faults(starter_folder):
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    need(chaos.may_mount(folder / "try"), "the right to mount a small disk")
    try:
        with chaos.small_disk(folder / "disk") as disk:
            local = chaos.Chaos(disk, SEED, faults=chaos.FAULTS)
            local.run()
            print(f"seed {SEED}:", dict(local.tally))
            assert chaos.problems(local) == []
            assert sum(local.tally.values()) - local.tally["sweeps"] >= chaos.FAULTS
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_trainings_on_slurm_survive_ten(starter_folder):
    with slurm_cluster.cluster() as folder:
        (folder / "disk").mkdir()
        on_slurm = chaos.SlurmChaos(folder / "disk", SEED, faults=10, runs=4)
        try:
            on_slurm.run()
            print(f"seed {SEED}:", dict(on_slurm.tally))
            assert chaos.problems(on_slurm) == []
        finally:
            subprocess.run(["scancel", "--user", str(os.getuid())], check=False)
            for daemon in on_slurm.daemons:
                daemon.kill()
                daemon.wait()
