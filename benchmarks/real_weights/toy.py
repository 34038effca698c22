"""The measurements of this folder on the starter (0.65 M parameters, made here), for the column next to the real model's.

    python -m benchmarks.real_weights.toy

The same code and prompts as `padding.py`, `stops.py` and `sampler.py`.
"""

import functools
from pathlib import Path

from benchmarks.real_weights import padding, sampler, stops
from benchmarks.record import Results, load, parser, run_main
from workbench.experiments.recipes import resolve_model
from workbench.generation.sampling import TransformersSampler
from workbench.generation.stops import StopSpec

STOPS = StopSpec(stop=(" of ", " the "))  # that its docstrings have; it writes none of the real model's


def main() -> None:
    args = parser(__doc__).parse_args()
    results = Results("real_weights.toy", args.out)
    model, tokenizer = load(Path(resolve_model("starter")))
    dtypes = ("float32", "bfloat16")
    results.part("padding", lambda: padding.report_of(model, tokenizer, padding.TEXTS, dtypes=dtypes))
    by = TransformersSampler(model, tokenizer)
    for limit in (64, 128):  # its window has 256 positions
        for name, spec in {"stock": StopSpec(), "ours": STOPS}.items():
            results.part(f"stops, {limit}, {name}", functools.partial(stops.audit, by, limit, spec, STOPS))
    for name, cause in sampler.causes(model, tokenizer).items():
        results.part(f"sampler, {name}", cause)


if __name__ == "__main__":
    run_main(main)
