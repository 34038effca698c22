"""What the folder of a run says, while it trains and afterwards."""

import contextlib

import pandas as pd

from ...curves.figures import DescribedFigure, show_training
from ...errors import ParameterError
from ...runs.completions import ends_of_completions
from ...runs.files import read_json
from ...runs.run import Run
from ...runs.text import html_table, visible


class TrainingProgress:
    """Steps, pace, curves and latest completions of a run's folder, or of a training's below it; shows itself."""

    def __init__(self, run: Run, examples: int = 4):
        self.progress = read_json(run.path / "progress.json", {})
        metrics = run.path / "metrics.jsonl"
        self.metrics = run.metrics if metrics.is_file() else pd.DataFrame()
        self.completions = _latest(run, examples)

    @property
    def sentence(self) -> str:
        """Step, pace and time left."""
        step, last = self.progress.get("step", 0), self.progress.get("max_steps", "?")
        if not len(self.metrics) or "step_time" not in self.metrics:
            return f"step {step} of {last}"
        pace = self.metrics["step_time"].tail(10)
        early = isinstance(last, int) and step < last
        left = f"; {pace.median() * (last - step):.0f} s to go" if early else ""
        left = "; ended early, by a callback" if early and self.progress.get("finished") else left
        spread = (
            f" (median of the last {len(pace)} steps, {pace.min():.2g} to {pace.max():.2g})" if len(pace) > 1 else ""
        )
        return f"step {step} of {last}; {pace.median():.2g} s a step{spread}{left}"

    def _repr_html_(self) -> str:
        parts = [f"<p>{visible(self.sentence)}</p>"]
        with contextlib.suppress(ParameterError):  # a trainer that logs no such columns has no figure
            if len(self.metrics):
                parts.append(_figure(show_training(self.metrics)))
        if len(self.completions):
            step = self.completions["step"].iloc[-1]
            columns = [c for c in ("prompt", "completion", "finish_reason", "reward") if c in self.completions]
            rows = [[_cell(value) for value in row] for row in self.completions[columns].to_numpy()]
            parts.append(html_table(rows, columns, f"Latest completions, of step {step}"))
        return "".join(parts)


def _figure(figure: DescribedFigure) -> str:
    """Without the table of its data, which would fold up at each update."""
    return figure._repr_html_().partition("<details>")[0]


def _cell(value) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return f'<span style="white-space:pre-wrap">{visible(str(value), 200)}</span>'


def _latest(run: Run, examples: int) -> pd.DataFrame:
    """The last rows recorded; of parts that cannot be read, those before them."""
    rows, _, _ = ends_of_completions(run.path, examples)
    return pd.DataFrame(rows[-examples:])
