"""Which known defects of TRL the settings of a training meet: `workbench doctor --trl 1.8.0 --args FILE`.

`data/defects.json` says which release has which defect, as its script in repros/ was seen to show; here stands which settings
lead into it.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..errors import ParameterError, did_you_mean
from ..extras import packaged
from ..logs.settings import read_arguments

TRAINERS = ("AsyncGRPO", "GRPO", "RLOO", "OnlineDPO", "PPO")
# What counts where a file does not say; the same in all releases of the table.
DEFAULTS = {
    "beta": 0.0,
    "gradient_accumulation_steps": 1,
    "importance_sampling_level": "token",
    "loss_type": "dapo",
    "mask_truncated_completions": False,
    "multi_objective_aggregation": "sum_then_normalize",
    "num_generations": 8,
    "per_device_train_batch_size": 8,
    "scale_rewards": "group",
    "top_entropy_quantile": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "use_vllm": False,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_mode": "colocate",
}
_OF_VLLM = ("stop", "stop_token_ids")  # transformers ignores these, and raises an error at stop_strings
_BY_TOKENS = ("dapo", "cispo", "vespo")  # the losses that divide by the tokens of a generation batch
_NUMBERS = (
    "gradient_accumulation_steps", "steps_per_generation", "per_device_train_batch_size", "generation_batch_size",
    "num_generations",
)  # fmt: skip


_REAL_NUMBERS = ("beta", "min_p", "top_entropy_quantile", "top_k", "top_p")
_FLAGS = ("mask_truncated_completions", "use_peft", "use_vllm", "vllm_importance_sampling_correction")
_WORDS = (
    "importance_sampling_level", "loss_type", "multi_objective_aggregation", "vllm_importance_sampling_mode", "vllm_mode",
)  # fmt: skip
_READ = {*DEFAULTS, *_NUMBERS, *_REAL_NUMBERS, *_FLAGS, *_WORDS, "generation_kwargs", "missing_eos_penalty"}
_NEAR = 0.9  # no other argument of TRL is as near to one of these names; a test asks them all
_YAML_TEXT = re.compile(r"\d+(?:\.\d*)?[eE][-+]?\d+")  # `1e-3`, which YAML takes for a text and TRL for a number


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
    def kwargs(self) -> dict:
        return self["generation_kwargs"] or {}

    @property
    def colocate(self) -> bool:
        return bool(self["use_vllm"]) and self["vllm_mode"] == "colocate"

    @property
    def stops(self) -> str:
        """The first stop in generation_kwargs that ends completions of this back end, such as `stop`; empty without one."""
        names = _OF_VLLM if self["use_vllm"] else ("eos_token_id",)
        return next((name for name in names if self.kwargs.get(name)), "")

    @property
    def steps_per_generation(self) -> int:
        """As TRL completes it, of one process."""
        batch = self["generation_batch_size"]
        completed = batch // self["per_device_train_batch_size"] if batch else self["gradient_accumulation_steps"]
        return self["steps_per_generation"] or completed


# True with the settings that do it, False, or None with what would decide it.
Met = tuple[bool | None, str]
NO: Met = (False, "")
_GROUPED, _NOT_PPO = ("GRPO", "RLOO"), ("GRPO", "RLOO", "OnlineDPO")
_AT_A_TEXT = "a rollout_func that stops at a text"


def _if(condition: Any, says: str, takes: str = "") -> Met:
    return (True, says) if condition else (None, takes) if takes else NO


def _window(s: Settings) -> Met:
    per_generation, accumulated = s.steps_per_generation, s["gradient_accumulation_steps"]
    if s["loss_type"] not in _BY_TOKENS or per_generation == accumulated:
        return NO
    scale = f"{accumulated / per_generation:g} times the gradient"
    about = f"steps_per_generation={per_generation}, gradient_accumulation_steps={accumulated}: {scale}"
    return True, f"{s.say('loss_type')}, {about}"


def _stop_ids(s: Settings) -> Met:
    ids = [name for name in ("stop_token_ids", "eos_token_id") if s.kwargs.get(name)]
    return _if(False, "", "".join(f"{name} in generation_kwargs that are special tokens" for name in ids[:1]))


def _lora(s: Settings) -> Met:
    given = s["use_peft"] if s["use_peft"] is not None else s["peft_config"]
    return _if(given, "LoRA", "a peft_config" * (given is None))


def _open_turn(s: Settings) -> Met:
    if not s.stops:
        return NO
    return None, f"tools or environments, if {s.stops} in generation_kwargs ends their calls"


def _ignored(s: Settings) -> Met:
    names = [name for name in ("stop", "stop_token_ids", "max_tokens") if s.kwargs.get(name)]
    return _if(names and not s["use_vllm"], f"{', '.join(names)} in generation_kwargs, without vLLM")


def _truncated(s: Settings) -> Met:
    names = [name for name, on in (("top_k", s["top_k"] > 0), ("top_p", s["top_p"] < 1), ("min_p", s["min_p"])) if on]
    return _if(names and _corrected(s), f"use_vllm=True, {s.say(*names)}")


def _corrected(s: Settings) -> bool:
    return bool(s["use_vllm"] and s["vllm_importance_sampling_correction"])


def _luspo(s: Settings) -> Met:
    mode = "vllm_importance_sampling_mode"
    wide = {"importance_sampling_level": s["importance_sampling_level"] == "token", "beta": s["beta"]}
    wide |= {"top_entropy_quantile": s["top_entropy_quantile"] < 1, mode: _corrected(s) and s[mode].startswith("token")}
    names = [name for name, on in wide.items() if on]
    return _if(s["loss_type"] == "luspo" and names, s.say("loss_type", *names))


def _zero_std(s: Settings) -> Met:
    odd = {"scale_rewards": "batch", "multi_objective_aggregation": "normalize_then_sum"}
    names = [name for name, value in odd.items() if s[name] == value]
    return _if(names, s.say(*names))


# Defect -> the trainers that may have it, and what its settings are.
MET: dict[str, tuple[Sequence[str], Callable[[Settings], Met]]] = {
    "async_divisor": (("AsyncGRPO",), lambda s: _if(
        s["gradient_accumulation_steps"] > 1, s.say("gradient_accumulation_steps"))),
    "copied_request_seed": (_GROUPED, lambda s: _if(
        s.colocate and s.kwargs.get("seed") is not None,
        f"{s.say('use_vllm', 'vllm_mode')}, seed={s.kwargs.get('seed')} in generation_kwargs")),
    "dropped_finish_reason": (_GROUPED, lambda s: _if(
        s["use_vllm"] and s.stops, f"use_vllm=True, {s.stops} in generation_kwargs")),
    "empty_completion": (_GROUPED, lambda s: (None, "a rollout_func or a server that returns an empty completion")),
    "engine_seed": (_NOT_PPO, lambda s: _if(s.colocate, s.say("use_vllm", "vllm_mode"))),
    "equal_rewards": (("GRPO",), lambda s: _if(
        False, "", "rewards such as 0.7 or 1.2, which fp32 rounds" * (
            s["num_generations"] > 2 and s["scale_rewards"] not in ("batch", "none", False)))),
    "false_clipping": (_GROUPED, lambda s: _if(s.stops, f"{s.stops} in generation_kwargs", _AT_A_TEXT)),
    "hidden_stop_token": (_GROUPED, _stop_ids),
    "ignored_stop_option": (_GROUPED, _ignored),
    "lora_without_the_seed": (_GROUPED, _lora),
    "loss_scale_masked": (("GRPO",), lambda s: _if(
        s["loss_type"] in _BY_TOKENS and s["mask_truncated_completions"],
        s.say("loss_type", "mask_truncated_completions"))),
    "loss_scale_window": (("GRPO",), _window),
    "luspo_padding": (("GRPO",), _luspo),
    "masked_stopped_rows": (_GROUPED, lambda s: NO if not s["mask_truncated_completions"] else _if(
        s.stops, f"mask_truncated_completions=True, {s.stops} in generation_kwargs", _AT_A_TEXT)),
    "online_dpo_stop_strings": (("OnlineDPO",), lambda s: _if(
        s["use_vllm"] and s.stops == "stop", "use_vllm=True, stop in generation_kwargs")),
    "open_tool_turn": (("GRPO",), _open_turn),
    "padding_without_positions": (_NOT_PPO, lambda s: (None, "a model with learned positions, as GPT-2")),
    "pads_behind_a_stop_id": (_GROUPED, lambda s: _if(
        not s["use_vllm"] and s.kwargs.get("eos_token_id"), "eos_token_id in generation_kwargs, without vLLM")),
    "ppo_penalty_looks_for_eos": (("PPO",), lambda s: _if(
        s["missing_eos_penalty"] and s["stop_token_id"] is not None, s.say("missing_eos_penalty", "stop_token_id"))),
    "ppo_runs_past_eos": (("PPO",), lambda s: _if(
        s["stop_token"] is None and s["stop_token_id"] is None, "no stop_token and no stop_token_id (the default)")),
    "ratio_over_truncated_support": (("GRPO",), _truncated),
    "sequence_ratio_is_a_sum": (("GRPO",), lambda s: _if(
        False, "", "completions long enough for a ratio above 3" * (
            _corrected(s) and s["vllm_importance_sampling_mode"].startswith("sequence")))),
    "several_eos_ids": (_GROUPED, lambda s: (None, "a model with several EOS ids in its generation_config.json")),
    "stop_strings_need_a_tokenizer": (_NOT_PPO, lambda s: _if(
        not s["use_vllm"] and s.kwargs.get("stop_strings"), "stop_strings in generation_kwargs, without vLLM")),
    "zero_std_share": (("GRPO",), _zero_std),
}  # fmt: skip


def met_by(name: str, settings: Settings) -> Met:
    """Say whether settings meet a defect."""
    trainers, rule = MET[name]
    return rule(settings) if settings.trainer in trainers else NO


def met_defects(release: str, settings: Settings) -> dict[str, Met]:
    """Name of each defect that a release has and the settings meet -> True and what meets it, or None and what else it takes.

    Example:
        >>> met_defects("1.8.0", Settings("GRPO", {"scale_rewards": "batch"}))["zero_std_share"]
        (True, 'scale_rewards=batch')
    """
    results = json.loads((packaged("data") / "defects.json").read_text(encoding="utf-8"))["results"]
    known = sorted({r for cells in results.values() for r in cells}, key=lambda r: [int(n) for n in r.split(".")])
    if release not in known:
        raise ParameterError(f"trl={release!r}: this release was not tested; expected one of {', '.join(known)}")
    present = [name for name in MET if results[name].get(release, {}).get("state") == "present"]
    return {name: met for name in present if (met := met_by(name, settings))[0] is not False}


def read_settings(path: Path) -> Settings:
    """The settings of a training, from a file or a run's folder as `logs.settings.read_arguments` takes it."""
    value = read_arguments(path)
    return Settings(_trainer(value), _checked(value, path))


def _checked(value: dict, path: Path) -> dict:
    """The arguments with numbers, words, true or false, and `generation_kwargs` that are such."""
    for name in value.keys() - _READ:
        if hint := did_you_mean(str(name), _READ, _NEAR):
            raise ParameterError(f"args={path}: {name}: expected an argument of TRL; {hint}Write it as TRL does")
    for name in _NUMBERS:
        if value.get(name) is not None and (type(value[name]) is not int or value[name] < 1):
            raise ParameterError(f"args={path}: {name}={value[name]!r}: expected a whole number of at least 1")
    for name in _REAL_NUMBERS:
        if isinstance(value.get(name), str) and _YAML_TEXT.fullmatch(value[name]):
            value = value | {name: float(value[name])}
        if value.get(name) is not None and type(value[name]) not in (int, float):
            raise ParameterError(f"args={path}: {name}={value[name]!r}: expected a number")
    for name in _FLAGS:  # 'false' with quotes would count as true
        if not isinstance(value.get(name), bool | int | None):
            raise ParameterError(f"args={path}: {name}={value[name]!r}: expected true or false, without quotes")
    for name in _WORDS:
        if not isinstance(value.get(name), str | None):
            raise ParameterError(f"args={path}: {name}={value[name]!r}: expected a word")
    batch, settings = value.get("generation_batch_size"), Settings("", value)
    if batch and batch % settings["per_device_train_batch_size"]:
        said = settings.say("generation_batch_size", "per_device_train_batch_size")
        raise ParameterError(f"args={path}: {said}: expected a multiple of the second, as TRL does; change one")
    kwargs = value.get("generation_kwargs")
    if isinstance(kwargs, str):  # as on a command line
        try:
            kwargs = json.loads(kwargs)
        except ValueError:
            kwargs = kwargs or None
    if kwargs is not None and not isinstance(kwargs, dict):
        raise ParameterError(f"args={path}: generation_kwargs={kwargs!r}: expected a mapping, NAME: VALUE")
    return value | {"generation_kwargs": kwargs}


def _trainer(value: dict) -> str:
    """From the name of the trainer where the file has one, else from an argument that only one trainer takes; else GRPO."""
    named = str(value.get("trainer") or value.get("trainer_name") or "").lower().replace("_", "")
    for name in TRAINERS:
        if name != "PPO" and name.lower() in named:
            return name
    if "ppo" in named or "num_ppo_epochs" in value:
        return "PPO"
    if "max_staleness" in value:
        return "AsyncGRPO"
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
            print(f"  cannot tell  {name}: only with {why}")
    if found:
        print("docs/evidence/defects.md says what each defect does and has a patch; repros/NAME.py shows the defect")
    return int(bool(certain))
