"""What the settings of a run are, from files next to its log, a script among them; nothing is unpickled and nothing run."""

import ast
import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import ParameterError, RunError, did_you_mean
from ..runs.files import checkpoints, parse_yaml, read_json, read_text

# Parameters of TRL that the rules use; `of_words` reads whole numbers, true or false, and words.
PARAMETERS: dict[str, type] = {
    "num_generations": int,
    "max_completion_length": int,
    "mask_truncated_completions": bool,
    "scale_rewards": str,
    "multi_objective_aggregation": str,
}
_WORDS = {
    "scale_rewards": ("group", "batch", "none"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
}
_TYPES = {"model_type": str, "min_tokens": int, "request_seed": int, "plain_prompts": bool, **PARAMETERS}
_CONFIGS = ("GRPOConfig", "RLOOConfig")
_MOST_SCRIPTS, _LONGEST_SCRIPT = 20, 1_000_000  # of a folder; bytes
_IN_FOLDER = ("recipe.json", "training_args.json", "args.json", "config.yaml", "config.yml", "args.yaml", "args.yml")
WATCHED = "_watch/recipe.json"  # of `attach_watch`, in a trainer's output folder
STOPS = ("stop", "stop_strings", "stop_token_ids", "eos_token_id")  # in generation_kwargs
_ROTARY = {"rope_theta", "rope_parameters", "rope_scaling", "rotary_dim"}  # of which a model's config has one


def facts_of(folder: Path, *, links: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Settings that a run's folder holds, see `Log.facts`, and a sentence for each file that cannot be read.

    `training_args.bin` is a pickle, which can run anything, and is never opened. Links are followed where `links`: a folder of
    the hub's cache has nothing else.
    """
    damage: list[str] = []

    def value(path: Path) -> dict:
        try:
            found = read_json(path.resolve() if links else path, {})
        except (RunError, OSError) as error:
            damage.append(f"{error}")
            return {}
        return _dict(found)

    facts = _of_recipe(value(folder / "recipe.json"))
    model = _model_folder(folder)
    config, generation = value(model / "config.json"), value(model / "generation_config.json")
    tokenizer = value(model / "tokenizer.json")
    eos = [*_ids(generation.get("eos_token_id")), *_ids(config.get("eos_token_id"))]
    facts |= {
        "model_type": config.get("model_type"),
        "rotary": bool(_ROTARY & config.keys()) or None,
        "dtype": config.get("dtype") or config.get("torch_dtype"),
        "eos_token_ids": list(dict.fromkeys(eos)),
        "pad_token_id": next(iter(_ids(generation.get("pad_token_id")) or _ids(config.get("pad_token_id"))), None),
        "tokenizer_ids": _tokenizer_ids(tokenizer),
        "tokenizer_file": str(model / "tokenizer.json") if tokenizer else None,
    }
    return {name: known for name, known in facts.items() if _fits(name, known)}, damage


def read_arguments(path: Path) -> dict[str, Any]:
    """TRL's arguments as a JSON or YAML file gives them, `trainer` among them where it is known.

    A folder has a `recipe.json` of the workbench, or another file of `_IN_FOLDER`.
    """
    if path.is_dir():
        found = next((path / name for name in (*_IN_FOLDER, WATCHED) if (path / name).is_file()), None)
        if found is None:
            below = sorted(file.parent.relative_to(path) for file in path.glob("*/**/recipe.json"))[:3]
            there = f"; below it are trainings: {', '.join(map(str, below))}" if below else ""
            raise ParameterError(
                f"args={path}: expected {', '.join(_IN_FOLDER)} in it, or the file with TRL's arguments{there}"
            )
        path = found
    if not path.is_file():
        raise ParameterError(f"args={path}: no such file or folder")
    if path.suffix not in (".json", ".yaml", ".yml"):
        raise ParameterError(f"args={path}: expected TRL's arguments in a .json or .yaml file, or the folder of a run")
    value = _yaml(path) if path.suffix in (".yaml", ".yml") else read_json(path, {})
    if not isinstance(value, dict) or not value:
        raise ParameterError(f"args={path}: expected TRL's arguments as NAME: VALUE")
    return _arguments(value)


def _yaml(path: Path) -> Any:
    try:
        return parse_yaml(read_text(path))
    except ValueError as error:
        raise ParameterError(f"args={path}: {error}") from None


def _arguments(value: dict) -> dict[str, Any]:
    """TRL's arguments in a file, which may be the workbench's record of a training."""
    found = value
    if isinstance(recipe := value.get("recipe"), dict):
        stops = {name: ids for name, ids in _dict(value.get("stops")).items() if ids and name in STOPS}
        ours = _is_ours(value) and value.get("source") == "workbench"  # it takes stops itself
        own = {"generation_kwargs": stops} if stops and not ours else {}
        found = {**recipe, "use_vllm": recipe.get("backend") == "vllm", **own, **_dict(value.get("overrides"))}
        found["trainer"] = value.get("trainer")
    return {name: _as_in_trl(name, known) for name, known in found.items()}


def _is_ours(recorded: dict) -> bool:
    """Say whether a trainer of the workbench wrote a record; `ObservedGRPOTrainer` is stock GRPO as an arm."""
    trainer = str(recorded.get("trainer") or "")
    return bool(trainer) and not (recorded.get("source") == "watched" or trainer.startswith("Observed"))


def _dict(value) -> dict:
    return value if isinstance(value, dict) else {}


def of_scripts(folder: Path) -> dict[str, Any]:
    """The parameters that scripts in a folder give to TRL's config, as `of_sources`; `settings_from` names the scripts."""
    found: dict[str, dict] = {}
    for path in sorted(folder.glob("*.py"))[:_MOST_SCRIPTS]:
        with contextlib.suppress(RunError, OSError):
            if path.stat().st_size <= _LONGEST_SCRIPT and (known := of_sources([read_text(path)])):
                found[path.name] = known
    agreed = _agreed(found.values())
    return agreed | {"settings_from": ", ".join(found)} if agreed else {}


def of_sources(sources: Iterable[str]) -> dict[str, Any]:
    """The parameters that calls of TRL's config give as plain values, where all calls agree.

    The sources, a script or the cells of a notebook, are parsed and never run.

    Example:
        >>> of_sources(["!pip install trl", "args = GRPOConfig(num_generations=8, scale_rewards=True, beta=b)"])
        {'num_generations': 8, 'scale_rewards': 'group'}
    """
    calls = []
    for source in (s for s in sources if any(name in s for name in _CONFIGS)):
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _CONFIGS:
                    given = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
                    calls.append({n: _as_in_trl(n, v) for n, v in given.items() if n in PARAMETERS})
                    if not _seeds_each_alone(given):
                        calls[-1] |= _request_seed(k.value for k in node.keywords if k.arg == "generation_kwargs")
    return {name: value for name, value in _agreed(calls).items() if _fits(name, value)}


def of_arguments(arguments: dict, origin: str) -> dict[str, Any]:
    """The parameters among a training's arguments, as a tracker keeps them; `settings_from` is their origin.

    Example:
        >>> of_arguments({"num_generations": 8, "scale_rewards": False, "seed": 1}, "W&B's config")
        {'num_generations': 8, 'scale_rewards': 'none', 'settings_from': "W&B's config"}
    """
    asked = {name: _as_in_trl(name, arguments.get(name)) for name in PARAMETERS}
    fitting = {name: value for name, value in asked.items() if _fits(name, value)}
    return fitting | {"settings_from": origin} if fitting else {}


def of_tracker(path: Path) -> dict[str, Any]:
    """The parameters in a tracker's `config.yaml`, which has `NAME: {value: VALUE}`."""
    try:
        config = _dict(_yaml(path)) if path.is_file() else {}
    except (ParameterError, RunError):
        return {}
    return of_arguments({str(name): _dict(entry).get("value") for name, entry in config.items()}, path.name)


def _seeds_each_alone(arguments: dict) -> bool:
    """Whether a seed makes no copies: a vLLM server adds a completion's index to it, and transformers takes none."""
    return arguments.get("use_vllm") is False or arguments.get("vllm_mode") == "server"


def _request_seed(values: Iterable[ast.expr]) -> dict[str, Any]:
    """The seed that a dict of `generation_kwargs` gives to every request."""
    for value in values:
        for name, given in zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ():
            if isinstance(name, ast.Constant) and name.value == "seed" and isinstance(given, ast.Constant):
                return {"request_seed": given.value}
    return {}


def _agreed(several: Iterable[dict]) -> dict[str, Any]:
    several = list(several)
    return {n: v for n, v in (several[0] if several else {}).items() if all(known.get(n) == v for known in several)}


def _as_in_trl(name: str, value):
    """`scale_rewards=True`, which TRL takes too, is "group"."""
    return {True: "group", False: "none"}[value] if name == "scale_rewards" and isinstance(value, bool) else value


def of_words(words: Sequence[str]) -> dict[str, Any]:
    """Settings as a user states them, such as `mask_truncated_completions=true`.

    Example:
        >>> of_words(["mask_truncated_completions=true", "num_generations=8"])
        {'mask_truncated_completions': True, 'num_generations': 8}
    """
    if isinstance(words, str):
        raise ParameterError(f"settings={words!r}: expected a list of settings, such as ['scale_rewards=batch']")
    given: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        kind = PARAMETERS.get(name)
        if kind is None:
            raise ParameterError(f"set={word!r}: expected NAME=VALUE, with one of these names: {', '.join(PARAMETERS)}")
        plain = {"true": True, "false": False}.get(value.lower(), int(value) if value.isdecimal() else value)
        given[name] = _as_in_trl(name, plain)
        if type(given[name]) is not kind or not value or (given[name] == 0 and kind is int):
            expected = {int: "a number, at least 1", bool: "true or false", str: "a word"}[kind]
            raise ParameterError(f"set={word!r}: expected {expected} for {name}")
        if given[name] not in _WORDS.get(name, (given[name],)):
            hint = did_you_mean(value, _WORDS[name])
            raise ParameterError(f"set={word!r}: {hint}expected one of {', '.join(_WORDS[name])}")
    return given


def _fits(name: str, known) -> bool:
    """Say whether a setting is known, and of the type that it has: the files may come from anyone."""
    return known is not None and known != [] and isinstance(known, _TYPES.get(name, object))


def _model_folder(folder: Path) -> Path:
    """Return where the model's files are: the folder itself, a policy in it, or its last checkpoint."""
    places = [folder, folder / "policy", *checkpoints(folder)]
    return next((p for p in places if (p / "config.json").is_file()), folder)


def _ids(value) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [i for i in values if type(i) is int]


def _tokenizer_ids(tokenizer: dict) -> frozenset[int] | None:
    """All ids of a `tokenizer.json`; None where it has no plain vocabulary."""
    vocabulary = _dict(tokenizer.get("model")).get("vocab")
    if isinstance(vocabulary, list):  # unigram models number their pieces
        ids = set(range(len(vocabulary)))
    elif isinstance(vocabulary, dict):
        ids = {i for i in vocabulary.values() if type(i) is int}
    else:
        return None
    added = tokenizer.get("added_tokens")
    added = [t.get("id") for t in added if isinstance(t, dict)] if isinstance(added, list) else []
    return frozenset(ids | {i for i in added if type(i) is int})


def _of_recipe(recorded: dict) -> dict[str, Any]:
    """The settings that the workbench records; `overrides` are those given to TRL's config by hand."""

    def items(values) -> list:
        return values if isinstance(values, list) else []

    arguments, stops, overrides = _arguments(recorded), _dict(recorded.get("stops")), _dict(recorded.get("overrides"))
    functions = [f for f in items(recorded.get("reward_funcs")) if isinstance(f, dict)]
    trainer = str(recorded.get("trainer") or "")
    own = _is_ours(recorded)
    return {
        **{name: arguments.get(name) for name in PARAMETERS},
        "trainer": trainer or None,
        "stop_strings": [s for s in items(stops.get("stop")) if isinstance(s, str)],
        "stop_token_ids": _ids(stops.get("stop_token_ids")),
        "min_tokens": stops.get("min_tokens"),
        "request_seed": (
            None if _seeds_each_alone(arguments) else _dict(arguments.get("generation_kwargs")).get("seed")
        ),
        "plain_prompts": recorded.get("plain_prompts"),
        # The workbench's trainers pass positions unless that is switched off.
        "explicit_positions": overrides.get("explicit_positions", own or None),
        "reward_highest": _highest([f.get("highest") for f in functions], items(overrides.get("reward_weights"))),
        "reward_unit": functions[0].get("unit") if len(functions) == 1 else None,
    }


def _highest(tops: list, weights) -> float | None:
    """The largest sum of rewards there can be, where each one's largest and its weight are known.

    Example:
        >>> _highest([1.0, 2.0], None), _highest([1.0, 2.0], [1.0, 0.5]), _highest([1.0, None], None)
        (3.0, 2.0, None)
    """
    weights = weights or [1.0] * len(tops)
    known = all(isinstance(n, int | float) for n in (*tops, *weights)) and min(weights, default=-1) >= 0
    return sum(w * t for w, t in zip(weights, tops, strict=True)) if known and len(weights) == len(tops) else None
