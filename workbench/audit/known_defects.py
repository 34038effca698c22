"""Which known defects of TRL the settings of a training meet: `workbench doctor --trl 1.8.0 --args FILE`.

`data/defects.json` says which release has which defect, as its script in repros/ was seen to show; here stands which settings
lead into it.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..errors import ParameterError
from ..logs.settings import STOPS, read_arguments
from ..packaged import packaged

TRAINERS = ("GRPO", "RLOO", "OnlineDPO", "PPO")
# What counts where a file does not say; the same in all releases of the table.
DEFAULTS = {
    "gradient_accumulation_steps": 1,
    "loss_type": "dapo",
    "mask_truncated_completions": False,
    "multi_objective_aggregation": "sum_then_normalize",
    "per_device_train_batch_size": 8,
    "scale_rewards": "group",
    "use_vllm": False,
    "vllm_mode": "colocate",
}
_BY_TOKENS = ("dapo", "cispo", "vespo")  # the losses that divide by the tokens of a generation batch
_NUMBERS = (
    "gradient_accumulation_steps",
    "steps_per_generation",
    "per_device_train_batch_size",
    "generation_batch_size",
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The trainer, one of TRAINERS, and the arguments that a file gives."""

    trainer: str
    given: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        value = self.given.get(name)
        return DEFAULTS.get(name) if value is None else value

    def say(self, *names: str) -> str:
        """`loss_type=dapo (the default), steps_per_generation=4`."""
        default = {name: "" if self.given.get(name) is not None else " (the default)" for name in names}
        return ", ".join(f"{name}={self[name]}{default[name]}" for name in names)

    @property
    def stops(self) -> str:
        """The first stop in generation_kwargs, such as `stop`; empty without one."""
        return next((name for name in STOPS if (self["generation_kwargs"] or {}).get(name)), "")

    @property
    def steps_per_generation(self) -> int:
        """As TRL completes it, of one process."""
        batch = self["generation_batch_size"]
        completed = batch // self["per_device_train_batch_size"] if batch else self["gradient_accumulation_steps"]
        return self["steps_per_generation"] or completed


# True with the settings that do it, False, or None with what would decide it.
Met = tuple[bool | None, str]
NO: Met = (False, "")


def _groups(rule: Callable[[Settings], Met]) -> Callable[[Settings], Met]:
    return lambda s: rule(s) if s.trainer in ("GRPO", "RLOO") else NO


def _copied_request_seed(s: Settings) -> Met:
    seed = (s["generation_kwargs"] or {}).get("seed")
    met = s["use_vllm"] and s["vllm_mode"] == "colocate" and seed is not None
    return (True, f"{s.say('use_vllm', 'vllm_mode')}, seed={seed} in generation_kwargs") if met else NO


def _engine_seed(s: Settings) -> Met:
    met = s.trainer != "PPO" and s["use_vllm"] and s["vllm_mode"] == "colocate"
    return (True, s.say("use_vllm", "vllm_mode")) if met else NO


def _finish_reason(s: Settings) -> Met:
    return (True, f"use_vllm=True, {s.stops} in generation_kwargs") if s["use_vllm"] and s.stops else NO


def _false_clipping(s: Settings) -> Met:
    return (True, f"{s.stops} in generation_kwargs") if s.stops else (None, "a rollout_func that stops at a text")


def _hidden_stop_token(s: Settings) -> Met:
    ids = [name for name in ("stop_token_ids", "eos_token_id") if (s["generation_kwargs"] or {}).get(name)]
    return (None, f"whether the {ids[0]} of generation_kwargs are special tokens") if ids else NO


def _masked_stopped_rows(s: Settings) -> Met:
    if not s["mask_truncated_completions"]:
        return NO
    about = "mask_truncated_completions=True"
    return (
        (True, f"{about}, {s.stops} in generation_kwargs") if s.stops else (None, "a rollout_func that stops at a text")
    )


def _lora(s: Settings) -> Met:
    given = s["use_peft"] if s["use_peft"] is not None else s["peft_config"]
    return (None, "a peft_config") if given is None else ((True, "LoRA") if given else NO)


def _online_dpo(s: Settings) -> Met:
    met = s.trainer == "OnlineDPO" and s["use_vllm"] and s.stops == "stop"
    return (True, "use_vllm=True, stop in generation_kwargs") if met else NO


def _pads(s: Settings) -> Met:
    met = not s["use_vllm"] and (s["generation_kwargs"] or {}).get("eos_token_id")
    return (True, "eos_token_id in generation_kwargs, without vLLM") if met else NO


def _stop_strings(s: Settings) -> Met:
    met = s.trainer != "PPO" and not s["use_vllm"] and (s["generation_kwargs"] or {}).get("stop_strings")
    return (True, "stop_strings in generation_kwargs, without vLLM") if met else NO


def _ppo_penalty(s: Settings) -> Met:
    met = s.trainer == "PPO" and s["missing_eos_penalty"] and s["stop_token_id"] is not None
    return (True, s.say("missing_eos_penalty", "stop_token_id")) if met else NO


def _ppo_eos(s: Settings) -> Met:
    met = s.trainer == "PPO" and s["stop_token"] is None and s["stop_token_id"] is None
    return (True, "no stop_token and no stop_token_id (the default)") if met else NO


def _window(s: Settings) -> Met:
    per_generation, accumulated = s.steps_per_generation, s["gradient_accumulation_steps"]
    if s.trainer != "GRPO" or s["loss_type"] not in _BY_TOKENS or per_generation == accumulated:
        return NO
    scale = f"{accumulated / per_generation:g} times the gradient"
    about = f"steps_per_generation={per_generation}, gradient_accumulation_steps={accumulated}: {scale}"
    return True, f"{s.say('loss_type')}, {about}"


def _masked_scale(s: Settings) -> Met:
    met = s.trainer == "GRPO" and s["loss_type"] in _BY_TOKENS and s["mask_truncated_completions"]
    return (True, s.say("loss_type", "mask_truncated_completions")) if met else NO


def _zero_std(s: Settings) -> Met:
    if s.trainer != "GRPO":
        return NO
    odd = {"scale_rewards": "batch", "multi_objective_aggregation": "normalize_then_sum"}
    names = [name for name, value in odd.items() if s[name] == value]
    return (True, s.say(*names)) if names else NO


# Defect -> what its settings are.
MET: dict[str, Callable[[Settings], Met]] = {
    "copied_request_seed": _groups(_copied_request_seed),
    "dropped_finish_reason": _groups(_finish_reason),
    "empty_completion": _groups(lambda s: (None, "a rollout_func or a server that returns an empty completion")),
    "engine_seed": _engine_seed,
    "false_clipping": _groups(_false_clipping),
    "hidden_stop_token": _groups(_hidden_stop_token),
    "lora_without_the_seed": _groups(_lora),
    "loss_scale_masked": _masked_scale,
    "loss_scale_window": _window,
    "masked_stopped_rows": _groups(_masked_stopped_rows),
    "online_dpo_stop_strings": _online_dpo,
    "padding_without_positions": lambda s: (
        NO if s.trainer == "PPO" else (None, "a model with learned positions, as GPT-2")
    ),
    "pads_behind_a_stop_id": _groups(_pads),
    "ppo_penalty_looks_for_eos": _ppo_penalty,
    "ppo_runs_past_eos": _ppo_eos,
    "several_eos_ids": _groups(lambda s: (None, "a model with several EOS ids in its generation_config.json")),
    "stop_strings_need_a_tokenizer": _stop_strings,
    "zero_std_share": _zero_std,
}


def met_defects(release: str, settings: Settings) -> dict[str, Met]:
    """Name of each defect that a release has and the settings meet -> True and what meets it, or None and what else it takes.

    Example:
        >>> met_defects("1.8.0", Settings("GRPO", {"scale_rewards": "batch"}))["zero_std_share"]
        (True, 'scale_rewards=batch')
    """
    results = json.loads((packaged("data") / "defects.json").read_text(encoding="utf-8"))["results"]
    known = sorted({r for cells in results.values() for r in cells}, key=lambda r: [int(n) for n in r.split(".")])
    if release not in known:
        raise ParameterError(f"trl={release!r}: not among the releases that were tried: {', '.join(known)}")
    present = [name for name in MET if results[name].get(release, {}).get("state") == "present"]
    return {name: met for name in present if (met := MET[name](settings))[0] is not False}


def read_settings(path: Path) -> Settings:
    """The settings of a training, from a file or a run's folder as `logs.settings.read_arguments` takes it."""
    value = read_arguments(path)
    return Settings(_trainer(value), _checked(value, path))


def _checked(value: dict, path: Path) -> dict:
    """The arguments with numbers and `generation_kwargs` that are such."""
    for name in _NUMBERS:
        if value.get(name) is not None and (type(value[name]) is not int or value[name] < 1):
            raise ParameterError(f"args={path}: {name}={value[name]!r}: expected a whole number of at least 1")
    kwargs = value.get("generation_kwargs")
    if isinstance(kwargs, str):  # as on a command line
        try:
            kwargs = json.loads(kwargs)
        except ValueError:
            kwargs = kwargs or None
    if kwargs is not None and not isinstance(kwargs, dict):
        raise ParameterError(f"args={path}: generation_kwargs={kwargs!r}: expected NAME: VALUE")
    return value | {"generation_kwargs": kwargs}


def _trainer(value: dict) -> str:
    """From the name of the trainer where the file has one, else from an argument that only one trainer takes; else GRPO."""
    named = str(value.get("trainer") or value.get("trainer_name") or "").lower().replace("_", "")
    for name in TRAINERS:
        if name != "PPO" and name.lower() in named:
            return name
    if "ppo" in named or "num_ppo_epochs" in value:
        return "PPO"
    return "OnlineDPO" if "missing_eos_penalty" in value and "max_new_tokens" in value else "GRPO"


def print_defects(release: str | None, path: Path) -> int:
    """Print the defects that the settings in a file meet, in the installed TRL for None; the exit code, 1 where one is met."""
    release, settings = release or version("trl"), read_settings(path)
    found = met_defects(release, settings)
    certain = {name: why for name, (met, why) in found.items() if met}
    print(f"TRL {release}, {settings.trainer}: these settings meet {len(certain)} known defects")
    for name, why in certain.items():
        print(f"  met          {name}: {why}")
    for name, (met, why) in found.items():
        if met is None:
            print(f"  cannot tell  {name}: takes {why}")
    if found:
        print("What each does and its patch: docs/evidence/defects.md; a script that shows it: repros/NAME.py")
    return int(bool(certain))
