"""Write a step of any trainer into a file for `workbench replay FILE`. Copy the function: it needs Python alone."""

import gzip
import json
import math


def write_step(path, rows, micro_batches, settings, number=0, versions=None, texts=None, dtype="float32", reused=None):
    """Write `step-000001.json.gz`.

    rows: a dictionary for each completion of T tokens, group after group: `prompt_ids`, `ids`, `sampled` (T, 0 for tokens of
        tools), `ended` (by itself; None: not known), `truncated` (as the trainer counts), `mask` (T, of the loss), `rewards`
        (F), `advantage`. Optional: `returned` (F, by the functions), `old_logps`, `ref_logps`, `sampled_logps` (T).
    micro_batches: dictionaries of `rows` (their numbers), `logps` (of each row, T), `loss`; optional `items` (its divisor).
    settings: `num_generations`, `gradient_accumulation_steps`; others of TRL's GRPOConfig are optional, see `defaults` below.
    texts: token id -> text, for the report. reused: True if an update of these completions came before; None: not known.
    """

    def clean(value):
        if isinstance(value, dict):
            return {str(name): clean(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [clean(each) for each in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    defaults = {"scale_rewards": "group", "reward_weights": None, "beta": 0.0, "loss_type": "dapo", "epsilon": 0.2}
    logps = ("old_logps", "ref_logps", "sampled_logps")
    sampled = [{name: row[name] for name in ("prompt_ids", "ids", "ended", "mask")} for row in rows]
    for row, other in zip(rows, sampled, strict=True):
        other |= {name: row.get(name) for name in logps} | {"end": len(row["ids"])}
        other |= {"own": row["sampled"], "cut_for_trl": row["truncated"]}
    step = {"kind": "GRPO", "dtype": dtype, "processes": 1, "rank": 0, "settings": defaults | settings, "rows": sampled}
    returned = [row["returned"] for row in rows if "returned" in row]
    step |= {"rewards": [[row["rewards"] for row in rows]], "returned": returned or None, "micro_batches": []}
    step |= {"advantages": [[row["advantage"] for row in rows]], "prompts": [row["prompt_ids"] for row in rows]}
    step |= {"reused": reused}
    for micro in micro_batches:
        own = [rows[i] for i in micro["rows"]]
        loss_rows = [{name: row.get(name) for name in ("advantage", "mask", *logps)} for row in own]
        loss_rows = [row | {"logps": values} for row, values in zip(loss_rows, micro["logps"], strict=True)]
        ids = [row["ids"] for row in own]
        taken = {"rows": loss_rows, "prompt_ids": [row["prompt_ids"] for row in own], "ids": ids, "completion_ids": ids}
        taken |= {"completion_mask": [[1] * len(each) for each in ids], "generation": 0}
        step["micro_batches"].append(taken | {"items": micro.get("items"), "loss": micro["loss"]})
    content = {"format": 2, "number": number, "versions": versions or {}, "vocabulary": texts or {}, "step": step}
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump(clean(content), file, allow_nan=False)
