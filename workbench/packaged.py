"""What the library carries in addition to its code: documented runs, the claims, the notebooks."""

from pathlib import Path


def packaged(name: str) -> Path:
    """The folder `data` or `notebooks` of this installation: in the package, where a checkout has links to those at its root.

    >>> (packaged("data") / "claims.json").is_file()
    True
    """
    return (Path(__file__).parent / name).resolve()
