"""Write `data/first_values.json`, the first points of each documented curve: `python -m tools.first_values`.

An audit asks of every log whether it is a documented run. With this file it opens only the runs that begin like the log.
"""

from workbench.curves.documented import as_text, beginning_of, list_baselines, load_baseline
from workbench.extras import packaged
from workbench.runs.files import write_text

PATH = packaged("data") / "first_values.json"


def text() -> str:
    runs = map(load_baseline, list_baselines())
    return as_text([beginning_of(run.name, metric, run.curve(metric)) for run in runs for metric in run.curves])


if __name__ == "__main__":
    write_text(PATH, text())
