"""Equal prompts through real trainers and back ends: does each completion stay with its prompt, and do groups differ?

For notebook 04 and its tests (article A3). Batches go through the trainer's own generation and scoring; nothing is trained.
"""

import shutil
import tempfile
import weakref

import pandas as pd
import torch
import trl
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from trl.trainer.utils import RepeatSampler

from ..curves.figures import COLORS, DescribedFigure
from ..errors import ParameterError
from ..generation.stops import StopSpec
from ..recipes.recipes import grpo_config, load_prompts, make_recipe
from ..toys.search_task import CLOSE
from ..training.groups import GroupError, identical_groups
from ..training.grpo import GRPOTrainer
from ..training.recording import quiet_libraries
from ..training.sync_on_cpu import install_cpu_sync, server_without_nccl
from .engines import sharing_engines


def group_advantages(rewards, num_generations: int, scale: str = "group"):
    """Advantages as TRL 1.12.0's GRPO computes them from the summed rewards.

    Args:
        rewards: (B,), G rows a group; NaN marks an unscorable row, whose advantage is 0.
        num_generations: G, at least 2.
        scale: `group`, `batch` or `none`, TRL's `scale_rewards`.

    Returns:
        (B,)

    Raises:
        GroupError: B is no multiple of G.
        ParameterError: another `scale`.

    Example:
        >>> import torch
        >>> group_advantages(torch.tensor([0.0, 1.0, 5.0, 5.0]), 2, scale="none").tolist()
        [-0.5, 0.5, 0.0, 0.0]
        >>> [round(a, 3) for a in group_advantages(torch.tensor([0.0, 1.0, 5.0, 5.0]), 2).tolist()]
        [-0.707, 0.707, 0.0, 0.0]
    """
    if scale not in ("group", "batch", "none"):
        raise ParameterError(f"scale={scale!r}: expected group, batch or none")
    if num_generations < 2 or rewards.numel() % num_generations:
        raise GroupError(f"{rewards.numel()} rewards, num_generations={num_generations}: expected groups of 2 or more")
    groups = rewards.view(-1, num_generations)
    centred = groups - groups.nanmean(dim=1, keepdim=True)
    if scale == "group":
        centred = centred / (_nanstd(groups) + 1e-4)
    elif scale == "batch":
        centred = centred / (_nanstd(rewards.view(1, -1)) + 1e-4)
    return torch.nan_to_num(centred, nan=0.0).view(-1)


def _nanstd(rows):
    """Sample standard deviation of each row, (N, 1), over the entries that are not NaN."""
    count = (~rows.isnan()).sum(dim=1, keepdim=True)
    squares = (rows - rows.nanmean(dim=1, keepdim=True)).square().nansum(dim=1, keepdim=True)
    return (squares / (count - 1)).sqrt()


def show_layout(batches: list[list[int]], num_generations: int) -> DescribedFigure:
    """TRL's batches as rows of cells, one colour and number per prompt: the repetition within a group is intended.

    Args:
        batches: prompt numbers in order, as from `sampler_layout`.
        num_generations: G; a thick line is drawn after each group.
    """
    width = max(map(len, batches))
    figure = Figure(figsize=(0.62 * width + 1.5, 0.6 * len(batches) + 1), layout="constrained")
    ax = figure.subplots()
    for row, batch in enumerate(batches):
        for column, prompt in enumerate(batch):
            color = COLORS[prompt % len(COLORS)]
            ax.add_patch(Rectangle((column, row), 1, 1, facecolor=color, alpha=0.35, edgecolor="#666"))
            ax.text(column + 0.5, row + 0.5, str(prompt), ha="center", va="center")
    for edge in range(0, width + 1, num_generations):
        ax.axvline(edge, color="black", linewidth=2)
    ax.set(xlim=(0, width), ylim=(len(batches), 0), xlabel="row of the batch", ylabel="batch")
    ax.set_yticks([n + 0.5 for n in range(len(batches))], [str(n) for n in range(len(batches))])
    groups = [f"batch {n}: prompts {', '.join(map(str, b[::num_generations]))}" for n, b in enumerate(batches)]
    alt = f"Each prompt stands {num_generations} times in a row. {'; '.join(groups)}."
    table = pd.DataFrame(batches).rename_axis("batch").reset_index()
    caption = (
        f"Numbers are prompts of the data set. One group of {num_generations} completions between two thick lines."
    )
    return DescribedFigure(figure, alt=alt, table=table, caption=caption)


def sampler_layout(*, prompts: int, num_generations: int, prompts_per_batch: int, seed: int = 0) -> list[list[int]]:
    """Which prompt stands where in the batches that TRL's own sampler makes of a data set.

    Args:
        prompts: of the data set.
        num_generations: G.
        prompts_per_batch: P.
        seed: of the shuffle.

    Returns:
        One list of P x G prompt numbers per batch.
    """
    sampler = RepeatSampler(range(prompts), num_generations, batch_size=prompts_per_batch, shuffle=True, seed=seed)
    order, size = list(sampler), prompts_per_batch * num_generations
    return [order[n : n + size] for n in range(0, len(order), size)]


def equal_prompt_batch(rows: list[dict], groups: int, num_generations: int, equal: float) -> list[dict]:
    """`groups` x G rows; the share `equal` of the groups has the first prompt, the others have one each."""
    same = round(groups * equal)
    chosen = [rows[0] if n < same else rows[(7 * n + 1) % len(rows)] for n in range(groups)]
    return [row for row in chosen for _ in range(num_generations)]


def make_trainer(
    cls, path: str, batch_size: int, *, vllm: bool, url: str | None = None, generation_kwargs=None, **kwargs
):
    """A GRPO trainer of class `cls` on the search task, ready to generate, or to train three steps."""
    backend = "vllm" if vllm else "transformers"
    sizes = {"per_device_train_batch_size": batch_size, "num_generations": 2}
    recipe = make_recipe("search", dataset="search", backend=backend, **sizes)
    fields = {"generation_kwargs": generation_kwargs, "save_strategy": "no", "max_completion_length": 24}
    fields |= {"max_steps": 3}
    if url:
        fields |= {"vllm_mode": "server", "vllm_server_base_url": url}
    folder = tempfile.mkdtemp(prefix="workbench-")
    args = grpo_config(recipe, folder, **fields)
    with server_without_nccl(args):  # stock TRL could not even start beside a server where there is no CUDA
        trainer = cls(
            path,
            lambda completions, **_: [0.0] * len(completions),
            args,
            train_dataset=load_prompts("search"),
            **kwargs,
        )
    if vllm and cls is trl.GRPOTrainer:
        install_cpu_sync(trainer.vllm_generation, args.output_dir)
    weakref.finalize(trainer, shutil.rmtree, folder, ignore_errors=True)
    return trainer


def score_batch(trainer, rows: list[dict], num_generations: int) -> dict:
    """One batch through the trainer's generation and scoring, with a reward that depends on the prompt.

    Returns:
        `asked`, `prompts`, `text`, `ids`, `rewards` as the reward function saw them; `trained_prompts`, `trained_ids` and
        `advantages` as the loss would; `requests`, `prompt_tokens` sent to vLLM; `identical`, the share of such groups.
    """
    trainer.num_generations = num_generations
    trainer.model.train()
    seen: dict = {}

    def reward(prompts, completions, completion_ids, answer, **_):
        wanted = [a.removeprefix("<search>").removesuffix(CLOSE) for a in answer]
        rewards = [10.0 * (topic in text) + len(text) for topic, text in zip(wanted, completions, strict=True)]
        ids = [list(row) for row in completion_ids]
        seen.update(prompts=list(prompts), text=list(completions), ids=ids, rewards=rewards, topics=wanted)
        return rewards

    trainer.reward_funcs[0] = reward
    out = trainer._generate_and_score_completions(rows)
    pairs = zip(out["prompt_ids"], out["prompt_mask"], strict=True)
    trained = zip(out["completion_ids"], out["completion_mask"], strict=True)
    tap = getattr(trainer, "engine", None)
    return {
        **seen,
        "asked": [row["prompt"] for row in rows],
        "trained_prompts": [trainer._tokenizer.decode(ids[mask.bool()]) for ids, mask in pairs],
        "trained_ids": [ids[mask.bool()].tolist() for ids, mask in trained],
        "advantages": out["advantages"].tolist(),
        "requests": tap.requests if tap else None,
        "prompt_tokens": tap.prompt_tokens if tap else None,
    }


def compare_backends(path: str, *, num_generations: int, seed: int, url: str | None) -> pd.DataFrame:
    """Four groups, two of one prompt, through stock and workbench trainers on each back end, with and without a seed.

    Args:
        path: of the search task's model.
        num_generations: G.
        seed: for the seeded cases.
        url: of a vLLM server of that model; None leaves it out.

    Returns:
        A row per trainer, back end and way to seed: rows trained under the `wrong prompt`, whether equal prompts have the
        `same answers across groups`, whether every `group is one sample`, the `advantage error`, and whether a second batch
        `repeats` the first.
    """
    quiet_libraries()
    rows = equal_prompt_batch(load_prompts("search").to_list(), 4, num_generations, 0.5)
    table = []
    with sharing_engines():
        places = {"transformers": (False, None), "vLLM": (True, None)}
        if url:
            places["vLLM server"] = (True, url)
        for place, (vllm, at) in places.items():
            for trainer, seeding, options in _cases(vllm, seed):
                cls = GRPOTrainer if trainer == "workbench" else trl.GRPOTrainer
                got = [_fresh_batch(cls, path, rows, num_generations, vllm, at, options) for _ in range(2)]
                facts = _judge(got[0], num_generations) | {"repeats": got[0]["ids"] == got[1]["ids"]}
                table.append({"trainer": f"{trainer}, {place}", "seed": seeding, **facts})
    return pd.DataFrame(table)


def _cases(vllm: bool, seed: int) -> list[tuple[str, str, dict]]:
    stop = {"stops": StopSpec(stop=(CLOSE,))}
    if not vllm:
        return [("stock", "none", {}), ("workbench", "none", stop)]
    stock = {"stop": [CLOSE]}
    return [
        ("stock", "none", {"generation_kwargs": stock}),
        ("stock", "generation_kwargs", {"generation_kwargs": stock | {"seed": seed}}),
        ("workbench", "none", stop),
        ("workbench", "generation_seed", stop | {"generation_seed": seed}),
        ("workbench", "generation_seed, shared", stop | {"generation_seed": seed, "share_generation": True}),
    ]


def _fresh_batch(cls, path, rows, num_generations: int, vllm: bool, url: str | None, options: dict) -> dict:
    trainer = make_trainer(cls, path, len(rows), vllm=vllm, url=url, **options)
    return score_batch(trainer, rows, num_generations)


def _judge(got: dict, g: int) -> dict:
    moved = zip(got["asked"], got["trained_prompts"], got["ids"], got["trained_ids"], strict=True)
    expected = group_advantages(torch.tensor(got["rewards"]), g)
    return {
        "wrong prompt": sum(asked != trained or ids != kept for asked, trained, ids, kept in moved),
        "same answers across groups": got["ids"][:g] == got["ids"][g : 2 * g],
        "group is one sample": len(identical_groups(got["ids"], g)) == len(got["ids"]) // g,
        "advantage error": float((torch.tensor(got["advantages"]) - expected).abs().max()),
        "requests": got["requests"],
    }
