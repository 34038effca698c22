"""Makes the toys again and says how far they differ from those that the package ships: `python -m workbench.toys`.

Text and tokenizers come out equal wherever the corpus is; weights depend on the processor and on the libraries, so the shipped
files are the ones that count. Trained on the shipped corpus unless `--docstrings` is given; nothing that is shipped is changed
unless `--out` names its folder. About 2 minutes on one core.
"""

import argparse
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from ..errors import ParameterError
from .starter import SHIPPED, corpus

MODELS = ("starter-qwen2", "starter-gpt2", "search-qwen2", "preferences")


def difference(made: Path) -> list[str]:
    """How far the toys in a folder that `make_toys` filled differ from the shipped ones, a line a thing."""
    return [
        f"corpus: {rows(corpus(made), corpus(SHIPPED))}",
        *(f"{name}: {_of_model(made / name, SHIPPED / name)}" for name in MODELS),
    ]


def rows(made: list[dict[str, str]], shipped: list[dict[str, str]]) -> str:
    """What is equal of two corpora."""
    if made == shipped:
        return f"identical, {len(made)} rows"
    ours, theirs = ({tuple(row.values()) for row in each} for each in (made, shipped))
    return (
        f"{len(ours & theirs)} rows as shipped, {len(theirs - ours)} shipped rows missing, {len(ours - theirs)} other"
    )


def _of_model(made: Path, shipped: Path) -> str:
    from safetensors.torch import load_file

    texts = [(folder / "tokenizer.json").read_bytes() for folder in (made, shipped)]
    tokenizer = "tokenizer identical" if texts[0] == texts[1] else "tokenizer differs"
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (made, shipped))
    if {name: w.shape for name, w in ours.items()} != {name: w.shape for name, w in theirs.items()}:
        return f"{tokenizer}, weights of other shapes"
    furthest = max(float((ours[name].float() - theirs[name].float()).abs().max()) for name in ours)
    return f"{tokenizer}, weights differ by up to {furthest:.2g}" if furthest else f"{tokenizer}, weights identical"


def main(argv: list[str] | None = None) -> int:
    """Make the toys, print how far they differ, and keep them where `--out` says."""
    about = __doc__.splitlines()[0].rpartition(":")[0]
    parser = argparse.ArgumentParser(prog="python -m workbench.toys", description=about)
    parser.add_argument(
        "--seed", type=int, default=0, help="of weights and of the order of rows; 0 made the shipped toys"
    )
    parser.add_argument("--out", type=Path, help="new folder to keep them in, for WORKBENCH_TOYS; default: not kept")
    parser.add_argument("--docstrings", action="store_true", help="train on this Python's docstrings instead")
    args = parser.parse_args(argv)
    if args.out and args.out.exists() and any(args.out.iterdir()) and not (args.out / "manifest.json").is_file():
        raise ParameterError(f"--out {args.out}: holds other files; expected a new folder or one of earlier toys")

    from datasets import disable_progress_bars
    from transformers.utils import logging

    from .make import docstring_corpus, make_toys

    disable_progress_bars()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    own, shipped = docstring_corpus(), corpus(SHIPPED)
    print(f"docstrings of Python {platform.python_version()}: {rows(own, shipped)}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "toys"
        print(f"training {', '.join(MODELS)}: about 2 minutes", flush=True)
        make_toys(made, own if args.docstrings else shipped, args.seed)
        print(*difference(made), sep="\n", flush=True)
        if args.out:
            shutil.copytree(made, args.out, dirs_exist_ok=True)
            print(f"kept in {args.out}; WORKBENCH_TOYS={args.out.resolve()} makes the package use them")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ParameterError as error:
        sys.exit(f"error: {error}")
