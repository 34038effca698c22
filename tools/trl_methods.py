"""Write the hashes of the methods of TRL that the trainers override: `python -m tools.trl_methods 1.17.0`.

Without a release it writes those of all releases that the tests run on. Each is downloaded, as a file, from the package index.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from workbench.extras import packaged
from workbench.runs.files import write_json
from workbench.trl_release import method_hashes

PATH = packaged("data") / "trl_methods.json"


def hashes_of(release: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, f"trl=={release}"]
        subprocess.run(command, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        zipfile.ZipFile(wheel).extractall(folder)
        return method_hashes(Path(folder) / "trl")


if __name__ == "__main__":
    stored = json.loads(PATH.read_text()) if PATH.exists() else {}
    stored |= {release: hashes_of(release) for release in sys.argv[1:] or sorted(stored)}
    write_json(PATH, dict(sorted(stored.items())))
