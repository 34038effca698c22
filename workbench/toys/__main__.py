"""Makes the toys again and says how far they differ from those that the package ships: `python -m workbench.toys`.

Text and tokenizers come out equal wherever the corpus is; weights depend on the processor and on the libraries, so the shipped
files are the ones that count. Trained on the shipped corpus unless `--docstrings` is given; nothing that is shipped is changed
unless `--out` names its folder. About 2 minutes on one core.
"""

import argparse
import gzip
import json
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from ..errors import ParameterError
from .starter import CORPUS, SHIPPED

MODELS = ("starter-qwen2", "starter-gpt2", "search-qwen2", "preferences")


def difference(made: Path, shipped: Path = SHIPPED) -> list[str]:
    """How far made toys differ from the shipped ones, a line a thing.

    Args:
        made: a folder that `make_toys` filled.
        shipped: the folder to compare it with.
    """
    return [
        f"corpus: {rows(_corpus(made), _corpus(shipped))}",
        *(f"{name}: {_of_model(made / name, shipped / name)}" for name in MODELS),
    ]


def _corpus(folder: Path) -> list[dict[str, str]]:
    return json.loads(gzip.decompress((folder / CORPUS).read_bytes()))


def rows(made: list[dict[str, str]], shipped: list[dict[str, str]]) -> str:
    """What is equal of two corpora.

    Example:
        >>> row = {"prompt": "a", "completion": "b"}
        >>> rows([row], [row]), rows([row], [])
        ('identical, 1 rows', '0 rows as shipped, 0 shipped rows missing, 1 other')
    """
    if made == shipped:
        return f"identical, {len(made)} rows"
    ours, theirs = ({(row["prompt"], row["completion"]) for row in corpus} for corpus in (made, shipped))
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
    if not furthest:
        return f"{tokenizer}, weights identical"
    unit = "nats a pair" if made.name == "preferences" else "nats a token"
    losses = f"{held_out_loss(shipped):.3f} shipped, {held_out_loss(made):.3f} made"
    return f"{tokenizer}, weights differ by up to {furthest:.2g}; loss on held-out text {losses}, in {unit}"


def held_out_loss(folder: Path) -> float:
    """Mean loss of a toy on text that it was not trained on.

    Of a starter in nats a token of completions: docstrings of this package; of the search model, other targets of its task;
    of the preference model in nats a pair: the pairs held out of its training.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from .make import docstring_corpus, one_thread, search_corpus
    from .preferences import held_out_pairs, loaded, scores

    if folder.name == "preferences":
        pairs = held_out_pairs(_corpus(SHIPPED))
        chosen, rejected = (
            torch.tensor(scores(*loaded(folder), [pair["prompt"] for pair in pairs], [pair[kind] for pair in pairs]))
            for kind in ("chosen", "rejected")
        )
        return float(-torch.nn.functional.logsigmoid(chosen - rejected).mean())
    texts = search_corpus(480, seed=1) if folder.name.startswith("search") else docstring_corpus(SHIPPED.parents[1])
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    total = count = 0
    for row in texts:
        prompt, completion = (tokenizer(text).input_ids for text in (row["prompt"], row["completion"]))
        labels = [-100] * len(prompt) + [*completion, tokenizer.eos_token_id]
        ids = torch.tensor([[*prompt, *completion, tokenizer.eos_token_id]])
        with torch.no_grad(), one_thread():
            total += float(model(ids, labels=torch.tensor([labels])).loss) * (len(completion) + 1)
        count += len(completion) + 1
    return total / count


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
    own, shipped = docstring_corpus(), _corpus(SHIPPED)
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
