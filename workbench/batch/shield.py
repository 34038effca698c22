"""Keeps a notebook's kernel alive through the notice that Slurm gives, which it sends to every process of a job."""

import os
import signal

NOTICES = (signal.SIGTERM, signal.SIGUSR2)


def shield() -> None:
    """Outlive Slurm's notices. Processes forked from here are ended by them as ever: pools of workers rely on that."""

    def ignore(*_):
        pass

    def restore() -> None:
        for number in NOTICES:
            signal.signal(number, signal.SIG_DFL)

    for number in NOTICES:
        signal.signal(number, ignore)
    os.register_at_fork(after_in_child=restore)
