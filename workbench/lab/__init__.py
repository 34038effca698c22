"""The lab: runs notebooks (`batch`), shows runs as pages (`reports`) and drives notebooks in JupyterLab (`widgets`).

It reads and writes run folders. Reports need the base install alone; running notebooks and the widgets need the extra `lab`.
Nothing outside of this folder and the command line imports it.
"""

from importlib.util import find_spec

from ..errors import MissingDependencyError
from ..extras import install


def need_lab(what: str, *modules: str) -> None:
    """Raise where one of the lab's libraries is not installed; `what` is named in the message.

    Example:
        >>> need_lab("counting", "math")
        >>> need_lab("a made-up thing", "no_such_package")
        Traceback (most recent call last):
        workbench.errors.MissingDependencyError: a made-up thing needs no_such_package: pip install 'trl-workbench[lab]'
    """
    if absent := [name for name in modules if find_spec(name) is None]:
        raise MissingDependencyError(f"{what} needs {', '.join(absent)}: {install('lab')}")
