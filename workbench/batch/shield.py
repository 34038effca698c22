"""Keeps a notebook's kernel alive through the notice that Slurm gives, which it sends to every process of a job."""

import os
import signal

NOTICES = (signal.SIGTERM, signal.SIGUSR2)


def shield() -> None:
    """Outlive Slurm's notices. Processes forked from here are ended by them as ever: pools of workers rely on that."""

    def ignore(*_):
        pass

    def hold_back() -> None:  # a signal between the fork and `restore` would be lost
        signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)

    def let_through() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, NOTICES)

    def restore() -> None:
        for number in NOTICES:
            signal.signal(number, signal.SIG_DFL)
        let_through()

    for number in NOTICES:
        signal.signal(number, ignore)
    os.register_at_fork(before=hold_back, after_in_parent=let_through, after_in_child=restore)
