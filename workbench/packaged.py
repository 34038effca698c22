"""What the library carries in addition to its code: documented runs, the claims, the notebooks."""

from pathlib import Path


def packaged(name: str) -> Path:
    """The folder `data` or `notebooks` of this installation.

    An installed wheel has the folders in the package. In a checkout the package has links to those at its root.

    Args:
        name: `data` or `notebooks`.

    >>> (packaged("data") / "claims.json").is_file()
    True
    """
    return (Path(__file__).parent / name).resolve()
