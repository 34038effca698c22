"""Write a step of a trainer with padded tensors into a file for `workbench replay FILE`. Copy the function: it needs torch."""

import gzip
import json
import math


def write_step(
    path, batch, micro_batches, settings, number=0, versions=None, decode=None, reused=None, dtype="float32"
):
    """Write `step-000001.json.gz`.

    batch: tensors of N completions, group after group, padded to P and T tokens: `prompt_ids`, `prompt_mask` (N, P),
        `completion_ids`, `completion_mask` (1 for real tokens), `mask` (1 in the loss), `logps` (of the loss) (N, T), `rewards`
        (N, F), `advantages` (N,), `ended`, `truncated` (N,; by itself, and as the trainer counts). Optional: `returned`
        (N, F, by the functions), `tool_mask` (0 for tokens of tools), `old_logps`, `ref_logps`, `sampled_logps` (N, T).
    micro_batches: `(rows, loss, items)` of each: numbers of rows, the loss, and the tokens that it was divided by.
    settings: `num_generations`, `gradient_accumulation_steps`; others of TRL's GRPOConfig are optional, see `defaults` below.
    decode: from a list of token ids to a text, for the report. reused: True if an update of these came before; None: not known.
    """

    def part(name, row, by="completion_mask"):
        if batch.get(name) is None:
            return None
        values = batch[name][row][batch[by][row].bool()].detach().cpu().tolist()
        return [None if isinstance(value, float) and not math.isfinite(value) else value for value in values]

    rows, taken = [], []
    for i in range(len(batch["completion_ids"])):
        ids = part("completion_ids", i)
        both = {"prompt_ids": part("prompt_ids", i, "prompt_mask"), "ids": ids}
        own = both | {"mask": part("mask", i), "end": len(ids), "cut_for_trl": bool(batch["truncated"][i])}
        logps = {name: part(name, i) for name in ("old_logps", "ref_logps", "sampled_logps")}
        rows.append(own | logps | {"own": part("tool_mask", i) or [1] * len(ids), "ended": bool(batch["ended"][i])})
        row = {"logps": part("logps", i), "advantage": batch["advantages"][i].tolist(), "mask": own["mask"]}
        taken.append(both | {"rows": row | logps, "completion_ids": ids, "completion_mask": [1] * len(ids)})
    micros = [{"loss": float(loss), "items": items, "generation": 0} for _, loss, items in micro_batches]
    for micro, (numbers, _, _) in zip(micros, micro_batches, strict=True):
        micro |= {name: [taken[i][name] for i in numbers] for name in taken[0]}
    defaults = {"scale_rewards": "group", "reward_weights": None, "beta": 0.0, "loss_type": "dapo", "epsilon": 0.2}
    step = {"kind": "GRPO", "dtype": dtype, "processes": 1, "rank": 0, "settings": defaults | settings, "rows": rows}
    step |= {name: [batch[name].tolist()] for name in ("rewards", "advantages")}
    step |= {"returned": batch["returned"].tolist() if "returned" in batch else None, "reused": reused}
    step |= {"prompts": [row["prompt_ids"] for row in rows], "micro_batches": micros}
    texts = {i: decode([i]) for row in rows for i in row["prompt_ids"] + row["ids"]} if decode else {}
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump({"format": 2, "number": number, "versions": versions or {}, "vocabulary": texts, "step": step}, file)
