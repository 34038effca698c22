"""What every executed notebook shows, with parameters of any size: its results hold, and it puts out no noise."""

import json
import re

from workbench.runs.results import results_of
from workbench.runs.run import Run
from workbench.runs.summary import RunSummary


def assert_whole(run: Run, too_short: tuple[str, ...] = ()) -> None:
    """A run is done, with results that hold; those that begin with `too_short` need a longer training."""
    results = results_of(run.result)
    assert results and run.result["headline"]["value"] is not None
    assert [says for says in RunSummary.of(run).failed if not says.startswith(too_short)] == []
    assert noise(run) == []
    assert re.search(r"\d", results[0].says)


def noise(run: Run) -> list[str]:
    """What a notebook puts out that is no result: warnings, progress bars, more than a dozen lines of log from one cell."""
    outputs = [
        o for cell in json.loads((run.path / "executed.ipynb").read_text())["cells"] for o in cell.get("outputs", [])
    ]
    streams = [(o["name"], "".join(o["text"])) for o in outputs if o["output_type"] == "stream"]
    bars = ["".join(o["data"]["text/plain"]) for o in outputs if "widget-view" in str(o.get("data", {}).keys())]
    # The line with which `attach_watch` begins, and what a resumed notebook says of a training that has no checkpoint.
    said = r"(workbench: watching, recorded in .*\n|.*: holds the record of a training, and a new one begins; .*\n)+"
    noisy = ((name == "stderr" and not re.fullmatch(said, text)) or text.count("\n") > 24 for name, text in streams)
    return bars + [text for (_, text), loud in zip(streams, noisy, strict=True) if loud]
