"""Which of several suspected settings explain why sampler and scorer differ: each is tried, and kept if it helps."""

import dataclasses
import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...consistency.mismatch import MismatchReport, mismatch_report
from ...consistency.padding import TOLERANCE
from ...errors import ParameterError

_LEAST = 0.2  # of the mean |rest|: what a suspect has to take away to be kept
_ROUNDING = 1e-5  # mean |rest| (nats) with nothing left to explain


@dataclasses.dataclass(frozen=True)
class Attribution:
    """Which of the suspects explain a rollout's mismatch.

    Attributes:
        causes: cause -> mean |difference| of a token that it makes, nats, the largest first; suspects that explain nothing,
            and parts within rounding, are not in it.
        rest: mean |difference| of a token that no suspect's settings take away, nats.
        by_size: the cause in `causes` that is named for its size alone, or "". A rounding error in lower precision depends on
            batch and kernel, so that no second pass repeats it token by token: what is left may be as large as one, or not.
        report: the mismatch report with the kept suspects' settings.
        tried: a row per try: which suspects, and the mean |rest| they leave.
    """

    causes: dict[str, float]
    rest: float
    by_size: str
    report: MismatchReport
    tried: pd.DataFrame

    @property
    def verdict(self) -> str:
        whole = np.abs(self.report.ratios.tokens).mean()
        parts = ", ".join(f"{name} {size:.2g}" for name, size in self.causes.items())
        rest = f"{self.rest:.2g} left"
        if self.by_size:
            rest += f", as much as {self.by_size} makes, though not token by token"
        elif self.rest > TOLERANCE.get(self.report.dtype, TOLERANCE["float32"]) / 10 and self.rest > 0.2 * whole:
            rest += ": not attributed, no suspect explains it"
        return f"{whole:.2g} nats a token: {parts or 'no cause found'}; {rest}."

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.verdict)}</p>{self.tried.to_html(index=False, float_format='%.2g')}"


def attribute_mismatch(
    model: Any,
    prompt_ids: Sequence,
    completion_ids: Sequence,
    sampled_logprobs: Sequence,
    suspects: Mapping[str, Mapping],
    **known,
) -> Attribution:
    """Try suspects one by one and together, and keep those whose settings bring the scores near the sampler's.

    It keeps the suspect that removes most of the difference, then adds the next one, until none removes a fifth of the rest.
    A dtype may then still be named because its rounding is as large as the rest (`by_size`). Padding and batch shape need no
    suspect: they are measured on the scorer.

    Args:
        model, prompt_ids, completion_ids, sampled_logprobs: as for `mismatch_report`.
        suspects: name -> options of `mismatch_report` that would hold if this were the cause, such as
            `{"top-p": {"top_p": 0.9}, "dtype": {"sampler_dtype": "bfloat16"}, "weights": {"sampler_model": earlier}}`.
        **known: options that hold in any case.

    Raises:
        ParameterError: no suspects; see `mismatch_report`.
    """
    if not suspects:
        raise ParameterError("suspects is empty; expected settings that may be the cause: {'top-p': {'top_p': 0.9}}")
    columns = (model, prompt_ids, completion_ids, sampled_logprobs)
    kept: list[str] = []
    report = mismatch_report(*columns, **known)
    rows, tries = [("none", _rest(report))], {}
    while len(kept) < len(suspects) and _rest(report) > _ROUNDING:
        for name in kept:
            known |= suspects[name]
        tries = {
            name: mismatch_report(*columns, **known | dict(suspects[name])) for name in suspects if name not in kept
        }
        rows += [(" + ".join([*kept, name]), _rest(tried)) for name, tried in tries.items()]
        best = min(tries, key=lambda name: _rest(tries[name]))
        if _rest(tries[best]) > (1 - _LEAST) * _rest(report):
            break
        kept.append(best)
        report = tries[best]
    left, causes, by_size = _rest(report), _causes(report), ""
    if left > _ROUNDING:  # the last tries are those beside all that is kept
        coarser = [name for name in tries if name not in kept and "sampler_dtype" in suspects[name]]
        sizes = {name: float(tries[name].parts["dtype"].abs().mean()) for name in coarser}
        by_size = next((name for name, size in sizes.items() if size / 2 <= left <= 2 * size), "")
        causes |= {by_size: left} if by_size else {}
        causes = dict(sorted(causes.items(), key=lambda cause: -cause[1]))
    tried = pd.DataFrame(rows, columns=["suspects", "mean |rest| [nats]"])
    return Attribution(causes, left, by_size, report, tried)


def _rest(report: MismatchReport) -> float:
    """Mean |difference| of a token that no setting explains."""
    return float(report.parts["sampler"].abs().mean())


def _causes(report: MismatchReport) -> dict[str, float]:
    """Parts beyond rounding and beyond half of what is left, the largest first."""
    sizes = report.parts.drop(columns="sampler").abs()
    kept = sizes.mean()[(sizes.max() > TOLERANCE["float32"]) & (sizes.mean() > _rest(report) / 2)]
    return {str(name): float(size) for name, size in kept.sort_values(ascending=False).items()}
