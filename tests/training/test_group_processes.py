import os
import subprocess
import sys

import pytest
import torch
from conftest import HELPERS

from workbench.runs.run import Run
from workbench.training.groups import check_groups, group_advantages

pytestmark = pytest.mark.slow

SCRIPT = HELPERS / "group_processes.py"


@pytest.mark.parametrize("g", [4, 16])
def test_two_processes_keep_groups_whole_also_where_a_group_spans_both(g, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0"]
    command += ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", str(SCRIPT), str(tmp_path), str(g)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    run = Run(tmp_path)
    assert run.metrics["step"].tolist() == [1, 2, 3, 4]
    for _, rows in run.completions.groupby("step"):
        assert len(rows) == 16
        check_groups(rows["prompt"].tolist(), rows["completion"].tolist(), g)
        own = [100.0 * len(p) + len(c) for p, c in zip(rows["prompt"], rows["completion"], strict=True)]
        assert rows["reward"].tolist() == own
        expected = group_advantages(torch.tensor(own), g)
        torch.testing.assert_close(torch.tensor(rows["advantage"].to_numpy()).float(), expected, rtol=1e-3, atol=1e-3)
