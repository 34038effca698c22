import signal
import subprocess
import sys

import pytest

from workbench.batch.node import why_ended


@pytest.mark.parametrize(
    ("job", "number", "expected"),
    [
        ({"JobState": "RUNNING", "EndTime": "1300", "PreemptTime": "None"}, signal.SIGUSR2, ("time limit", 1290)),
        ({"JobState": "RUNNING", "EndTime": "1030", "PreemptTime": "1000"}, signal.SIGTERM, ("preemption", 1020)),
        ({"JobState": "RUNNING", "EndTime": "1006", "PreemptTime": "999"}, signal.SIGTERM, ("preemption", 1004)),
        ({"JobState": "RUNNING", "EndTime": "1300", "PreemptTime": "None"}, signal.SIGTERM, ("SIGTERM", 1290)),
        ({"JobState": "COMPLETING", "EndTime": "1000"}, signal.SIGTERM, ("ended", 1000)),
        ({}, signal.SIGUSR2, ("time limit", 1020)),
    ],
)
def test_the_cause_of_a_notice_says_how_long_a_run_may_go_on(job, number, expected):
    assert why_ended(job, number, 1000.0) == expected


SHIELDED = """
import multiprocessing, os, signal, time
from workbench.batch.node import shield
shield()
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
worker.start()
for number in (signal.SIGTERM, signal.SIGUSR2):
    os.kill(os.getpid(), number)
worker.terminate()
worker.join()
print("alive,", worker.exitcode)
"""


def test_a_shielded_kernel_outlives_the_notice_and_its_pools_of_workers_still_end():
    process = subprocess.run([sys.executable, "-c", SHIELDED], capture_output=True, text=True, timeout=90)
    assert process.stdout == "alive, -15\n"
