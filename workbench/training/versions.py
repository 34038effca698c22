"""Which releases of TRL this folder is for: it overrides parts of them, so another release is another matter."""

import warnings
from importlib.metadata import version

from ..errors import MissingDependencyError

OLDEST, NEWEST = (
    "1.12.0",
    "1.16.0",
)  # the tests run on both; `make lanes` runs those of stops, positions and groups between
LAST_WITH_PPO = "1.12.0"


def check_trl(found: str = "") -> None:
    """Refuse a TRL that is too old, and warn of one that is newer than the tests.

    Args:
        found: its version; empty for the installed one's.

    Raises:
        MissingDependencyError: older than `OLDEST`.

    Example:
        >>> check_trl("1.14.2")
        >>> check_trl("1.11.0")
        Traceback (most recent call last):
        workbench.errors.MissingDependencyError: trl 1.11.0: the workbench takes 1.12.0 to 1.16.0; pip install "trl>=1.12,<1.17"
    """
    found = found or version("trl")
    if _minor(found) < _minor(OLDEST):
        above = ".".join(map(str, (_minor(NEWEST)[0], _minor(NEWEST)[1] + 1)))
        raise MissingDependencyError(
            f'trl {found}: the workbench takes {OLDEST} to {NEWEST}; pip install "trl>={OLDEST[:-2]},<{above}"'
        )
    if _minor(found) > _minor(NEWEST):
        warnings.warn(
            f"trl {found} is newer than the workbench was tested with ({NEWEST}): its stops and groups rest on parts of TRL "
            "that may have moved. Look at one run's `completions/clipped_ratio` and `stops/clipped_ratio` before you trust it",
            stacklevel=3,
        )


def no_ppo(error: ImportError) -> MissingDependencyError:
    """What to say where TRL has no PPOTrainer."""
    return MissingDependencyError(
        f"PPOTrainer: trl {version('trl')} has none, it left TRL with 1.13; pip install trl=={LAST_WITH_PPO} ({error})"
    )


def _minor(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)
