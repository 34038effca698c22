"""Write a step of a trainer with padded tensors into a file for `workbench replay FILE`. Copy the function: it needs torch."""

import gzip
import json
import math


def write_step(path, batch, micro_batches, settings, number=0, versions=None, decode=None, dtype="float32"):
    """Write `step-000001.json.gz`.

    batch: tensors of N completions, group after group, padded to P and T tokens: `prompt_ids`, `prompt_mask` (N, P),
        `completion_ids`, `completion_mask` (1 for real tokens), `mask` (1 in the loss), `logps` (of the loss) (N, T), `rewards`
        (N, F), `advantages` (N,), `ended`, `truncated` (N,; by itself, and as the trainer counts); where there are any,
        `returned` (N, F), `tool_mask` (0 for tokens of tools), `old_logps`, `ref_logps`, `sampled_logps` (N, T).
    micro_batches: `(rows, loss, items)` of each: numbers of rows, the loss, and the tokens that it was divided by.
    settings: `num_generations`, `gradient_accumulation_steps`, and others of TRL's GRPOConfig.
    decode: from a list of token ids to a text, for the report.
    """

    def part(name, row, by="completion_mask"):
        if batch.get(name) is None:
            return None
        values = batch[name][row][batch[by][row].bool()].detach().cpu().tolist()
        return [None if isinstance(value, float) and not math.isfinite(value) else value for value in values]

    rows, taken = [], []
    for i in range(len(batch["completion_ids"])):
        ids = part("completion_ids", i)
        own = {"prompt_ids": part("prompt_ids", i, "prompt_mask"), "ids": ids, "mask": part("mask", i), "end": len(ids)}
        logps = {name: part(name, i) for name in ("old_logps", "ref_logps", "sampled_logps")}
        ended = {"ended": bool(batch["ended"][i]), "cut_for_trl": bool(batch["truncated"][i])}
        rows.append(own | logps | ended | {"own": part("tool_mask", i) or [1] * len(ids)})
        row = {"logps": part("logps", i), "advantage": batch["advantages"][i].tolist(), "mask": own["mask"]}
        taken.append({"rows": row | logps, "prompt_ids": own["prompt_ids"], "ids": ids, "completion_ids": ids})
        taken[i]["completion_mask"] = [1] * len(ids)
    micros = [{name: [taken[i][name] for i in numbers] for name in taken[0]} for numbers, _, _ in micro_batches]
    numbers = [{"loss": float(loss), "items": items, "generation": 0} for _, loss, items in micro_batches]
    defaults = {"scale_rewards": "group", "reward_weights": None, "beta": 0.0, "loss_type": "dapo", "epsilon": 0.2}
    step = {"kind": "GRPO", "dtype": dtype, "processes": 1, "rank": 0, "settings": defaults | settings, "rows": rows}
    step |= {name: [batch[name].tolist()] for name in ("rewards", "advantages")}
    step |= {"returned": batch["returned"].tolist() if "returned" in batch else None}
    step |= {"prompts": [row["prompt_ids"] for row in rows]}
    step |= {"micro_batches": [micro | other for micro, other in zip(micros, numbers, strict=True)]}
    texts = {i: decode([i]) for row in rows for i in row["prompt_ids"] + row["ids"]} if decode else {}
    content = {"format": 2, "number": number, "versions": versions or {}, "vocabulary": texts, "step": step}
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump(content, file)
