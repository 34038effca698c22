"""TRL's GRPOTrainer and RLOOTrainer with stops that masks and metrics obey, checked groups and recorded runs.

What stock TRL does in a step, and what is changed here:

1. It takes rows of equal prompts as a group, by their place alone. Here a batch that is ordered otherwise raises.
2. It samples until EOS. Here each row also ends at any of `stops`, on every back end, and what follows is cut.
3. On vLLM it samples alike for every `args.seed`. Here the seed counts, and `generation_seed` makes a run repeat exactly.
4. Between a tool's call and its answer it counts on an EOS of the policy. Here one is added where a stop ended the turn.
5. It takes a row for truncated if `ids[-1]` is neither EOS nor pad, in masks, metrics and penalties. Here that element is EOS
   exactly where the row stopped (`EndedRow`). Every reader unmasks with `ids[:]`, and `_check_reading` raises if TRL reads
   otherwise. Once TRL takes finish reasons from its sampler (`repros/patches`), `EndedRow` can go.
6. It leaves special tokens out of the texts. Here reward functions also see a special token that is a stop.
7. It takes rewards as they come. Here one that is no finite number raises, and names its function and row.
8. It scores padded rows without position ids, so pads count as text. Here positions are passed (`explicit_positions`).
9. It forgets what it sampled. Here one `Generation` a batch notes it, and `record_dir` keeps it with the metrics.

Advantages, loss and optimizer are TRL's own.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch
import trl
from accelerate.utils import gather_object
from transformers import set_seed

from ..consistency.positions import fills_position_ids
from ..consistency.ratios import RatioReport
from ..errors import ParameterError
from ..generation.preflight import backend_of, check_before_compute
from ..generation.stops import End, StopRule, Stops, StopSpec
from ..generation.template import call_text, ends_with_eos
from ..trl_release import NEWEST, OLDEST
from .engine import EngineRequests, improbable_copies
from .groups import GroupError, check_groups, identical_groups
from .recording import attach_recorder, check_record_dir
from .rewards import distinct, name_of, validated
from .rows import EmptyRow, EndedRow, EndError, Generation, RecordsRows, positions_filled, stopped_for_trl, trl_ends
from .sync_on_cpu import building_on_cpu, install_cpu_sync
from .updates import warn_before_training

TRL_CUT = "completions/clipped_ratio"  # TRL's metric, of each generation


@contextlib.contextmanager
def stops_in_generate(rule: StopRule, policy: Any) -> Iterator[list]:
    """While open, `policy.generate` obeys the rule; yields a list of the ids (B, T) of each call, uncut."""
    original, sampled = policy.generate, []

    def generate(**inputs: Any):
        output = rule.generate(policy, original, **inputs)
        sampled.append(output[:, inputs["input_ids"].shape[1] :])
        return output

    with mock.patch.object(policy, "generate", generate):
        yield sampled


def with_stop_text(rule: StopRule, rows: Sequence[EndedRow], completions: list, own_tokens: Any = None) -> list:
    """B completions, texts or messages, as reward functions should read them: TRL drops special stops from the text.

    Of several turns it is the last one's stop. What the tokenizer's response template has parsed stays as it is.
    """
    if isinstance(completions[0], str):
        return [rule.text(row[:], row.end) for row in rows]
    fixed = []
    for n, (row, messages) in enumerate(zip(rows, completions, strict=True)):
        turn, end = row[:], row.end
        if len(messages) > 1:  # the policy's last one stands behind a tool's answer
            turn = turn[max((i for i, own in enumerate(own_tokens[n]) if not own), default=-1) + 1 :]
            end = rule.last_end(turn)
        if messages[-1].get("content") == rule.tokenizer.decode(turn, skip_special_tokens=True):
            messages = [*messages[:-1], {**messages[-1], "content": rule.text(turn, end)}]
        fixed.append(messages)
    return fixed


def finish_trainer(trainer: Any, record_dir: str | Path | None, steps: Any = None) -> None:
    """Seed the sampler, attach the recorder, and warn of what would make the training come to nothing."""
    if backend_of(trainer.args) == "vllm":
        # TRL's engine seeds the whole process alike for every `args.seed`; the ranks of one engine have to draw alike.
        set_seed(trainer.args.seed + trainer.accelerator.process_index // trainer.args.vllm_tensor_parallel_size)
    if record_dir is not None:
        trainer.recorder = attach_recorder(trainer, record_dir, steps)
    warn_before_training(trainer)


_Trainer: Any = trl.GRPOTrainer if TYPE_CHECKING else object  # whose attributes the methods use


class _Control(RecordsRows, _Trainer):
    """What GRPO and RLOO share, before TRL's trainer in the bases; `GRPOTrainer` documents the arguments."""

    # Class-level, for a trainer that is made without `__init__`, as TRL's own tests of a rollout function do.
    stop_rule: Any = None  # a `StopRule`
    engine: Any = None  # on vLLM `EngineRequests`
    explicit_positions = False
    reward_func_names: list[str]  # TRL's

    def __init__(
        self,
        model: Any,
        reward_funcs: Any,
        args: Any,
        *,
        stops: Stops,
        generation_seed: int | None,
        share_generation: bool,
        explicit_positions: bool,
        record_dir: str | Path | None,
        record_steps: int | Collection[int] | None,
        processing_class: Any,
        **trl_arguments: Any,
    ):
        spec = StopSpec.of(stops)
        check_record_dir(record_dir, record_steps)
        if (share_generation or generation_seed is not None) and not (args and args.use_vllm):
            raise ParameterError(
                f"generation_seed={generation_seed}, share_generation={share_generation}: need vLLM; "
                "set use_vllm=True or leave them out"
            )
        if not explicit_positions and isinstance(model, torch.nn.Module) and fills_position_ids(model):
            raise ParameterError("explicit_positions=False: the model has a hook of with_position_ids; remove it")
        if args is not None:
            check_before_compute(model, args, spec, processing_class)
            set_seed(args.seed)  # TRL before 1.15 makes an adapter before it seeds
        given = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else reward_funcs  # TRL writes into a list
        with building_on_cpu(args):
            super().__init__(model, given, args, processing_class=processing_class, **trl_arguments)  # type: ignore[call-arg]
        pairs = zip(self.reward_func_names, self.reward_funcs, strict=True)
        # TRL names a partial by its function, whatever `__name__` its user gave it.
        self.reward_func_names = distinct([name_of(f) if isinstance(f, partial) else name for name, f in pairs])
        if self.use_vllm:
            install_cpu_sync(self, self.args.output_dir)
            self.engine = EngineRequests(
                self.vllm_generation,
                lambda: (self.state.global_step, self.model.training),
                seed=generation_seed,
                share=share_generation,
                run_seed=self.args.seed,
            )
        self.set_stops(spec)
        self.explicit_positions = explicit_positions
        finish_trainer(self, record_dir, record_steps)

    def set_stops(self, stops: StopSpec) -> None:
        """From the next generation on, end completions at `stops`."""
        self.stop_rule = StopRule(stops, self._tokenizer, self.model.generation_config, self.max_completion_length)
        if self.use_vllm:
            self.vllm_generation.generation_kwargs = (self.args.generation_kwargs or {}) | self.stop_rule.for_vllm()

    def train(self, *args: Any, **kwargs: Any):
        with positions_filled(self):
            return super().train(*args, **kwargs)

    def compute_loss(self, *args: Any, **kwargs: Any):
        with positions_filled(self):  # in an evaluation too, and where a user drives the steps
            return super().compute_loss(*args, **kwargs)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any):
        with positions_filled(self):
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    def _generate_single_turn(self, prompt_ids: Any, *rest: Any, **kwargs: Any):
        if self.use_vllm:
            control: Any = contextlib.nullcontext([])
        else:
            self.generation_config.eos_token_id = list(self.stop_rule.stop_ids) or None  # for continuous batching
            control = stops_in_generate(self.stop_rule, self.accelerator.unwrap_model(self.model_wrapped))
        training = self.model.training
        with control as raw_ids:
            sampled = super()._generate_single_turn(prompt_ids, *rest, **kwargs)
        if self.model.training != training:  # continuous batching leaves it in training, in an evaluation too
            self.model.train(training)
        completion_ids, logprobs = sampled if isinstance(sampled, tuple) else (sampled, None)
        rows = [list(map(int, row)) for row in (raw_ids[-1].tolist() if raw_ids else completion_ids)]
        self.generation = dataclasses.replace(self.generation, sampled=rows)
        cut = [self._ended(row, self.stop_rule.find_end(row)) for row in rows]
        if not isinstance(sampled, tuple):
            return cut
        if logprobs is not None:
            logprobs = [row[: len(kept)] for row, kept in zip(logprobs, cut, strict=True)]
        return cut, logprobs

    def _tool_call_loop(self, prompts: list, prompt_ids: list, rows: list, completions: list, *rest: Any):
        suffix_ids = self._get_tool_suffix_ids

        def closed(tool_messages: list) -> list[int]:
            # TRL writes into `rows` and `completions`, so they hold the turns so far, each answer in its own row.
            row = next(ids for ids, turns in zip(rows, completions, strict=True) if turns[-1] is tool_messages[-1])
            return self._turn_end(row, tool_messages[0]["name"]) + suffix_ids(tool_messages)

        with mock.patch.object(self, "_get_tool_suffix_ids", closed):
            mask, texts, ids, *others = super()._tool_call_loop(prompts, prompt_ids, rows, completions, *rest)
        self.generation = dataclasses.replace(self.generation, sampled=())  # their last turn decides where rows end
        return mask, texts, [self._ended(row) for row in ids], *others

    def _turn_end(self, row: Sequence[int], tool: str) -> list[int]:
        """EOS where a turn that calls a tool stopped at something else, and the chat template closes such turns with EOS.

        TRL's suffix begins behind the template's EOS, and counts on the policy to have written it.
        """
        (ended,) = self._all_ended([row])
        if ended.end.finish_reason != "stop" or ended[:][-1] in self.stop_rule.eos_ids:
            return []
        text = call_text(self.processing_class, tool, chat_template=self.chat_template, **self.chat_template_kwargs)
        return [self._tokenizer.eos_token_id] if ends_with_eos(self.processing_class, text) else []

    def _ended(self, ids: Sequence[int], end: End | None = None) -> EndedRow:
        """A row up to its end; without one its last token says whether it stopped."""
        # Of a subclass or a rollout function they may be tensors, which equal no stop in a set.
        ids = list(map(int, ids))
        end = end or self.stop_rule.last_end(ids)
        return EndedRow(ids[: end.index], end, self._tokenizer.eos_token_id)

    def _generate(self, prompts: list):
        self.generation = dataclasses.replace(self.generation, sampled=())
        metrics = self._metrics["train" if self.model.training else "eval"]
        before = len(metrics.get(TRL_CUT, ()))
        generated = list(super()._generate(prompts))
        if self.stop_rule is None:
            return tuple(generated)
        if counted := metrics.get(TRL_CUT, ())[before:]:
            self._check_reading(generated[1], counted[-1])
        generated[1] = self._all_ended(generated[1])  # a subclass or a late rollout function gives plain rows
        text_index = 2 if len(generated) == 3 else 3  # RLOO returns three values, GRPO eight
        own_tokens = None if text_index == 2 else generated[2]
        if self.stop_rule.spec.custom:
            generated[text_index] = with_stop_text(self.stop_rule, generated[1], generated[text_index], own_tokens)
        self.generation = self._generation_of(generated[1], generated[text_index], own_tokens)
        self._log_groups([row[:] for row in generated[1]])
        generated[1] = [row if len(row) else EmptyRow() for row in generated[1]]
        return tuple(generated)

    def _check_reading(self, rows: Sequence, trl_cut: float) -> None:
        """Raise where the share of rows that TRL has counted as cut is not that of their ends: `EndedRow` rests on `[-1]`."""
        ids = list(trl_ends(self))
        cut = [row.end.finish_reason != "stop" if isinstance(row, EndedRow) else row[-1] not in ids for row in rows]
        cut = gather_object(cut)
        share = sum(cut) / len(cut)
        if abs(trl_cut - share) > 0.5 / len(cut):
            raise EndError(
                f"{TRL_CUT}: trl {trl.__version__} counts {trl_cut:.3g} of the completions as cut, by their ends it is "
                f"{share:.3g}. It does not read the last id of a row as row[-1], or a class between this trainer and TRL's has "
                f"changed the rows; masks and metrics would be wrong. Train with TRL {OLDEST} to {NEWEST}, and change rows in "
                "a child of this trainer"
            )

    def _generation_of(self, rows: Sequence[EndedRow], completions: list, own_tokens: Any) -> Generation:
        """Note where each row of this process ended, and its text, once they are generated."""
        plain = [row[:] for row in rows]
        return dataclasses.replace(
            self.generation,
            rows=plain,
            ends=[row.end for row in rows],
            trl_stopped=stopped_for_trl(self, plain),
            texts=[self._row_text(*each) for each in zip(completions, rows, strict=True)],
            own_tokens=own_tokens,
            engine_reasons=self.engine.reasons if self.engine else None,
        )

    def _scored_generation(self, rows: Sequence, completions: Sequence) -> Generation:
        if self.stop_rule is None or [list(map(int, row[:])) for row in rows] == self.generation.rows:
            return self.generation
        # A subclass has changed the rows: which of their tokens are a tool's, and what was sampled, is not known.
        changed = self._generation_of(self._all_ended(rows), list(completions), own_tokens=None)
        return dataclasses.replace(changed, sampled=())

    @property
    def sampled_ids(self) -> Sequence[Sequence[int]]:
        """Token ids of each completion of the last generation, with what follows its end; empty with several turns."""
        return self.generation.sampled

    def _all_ended(self, rows: Sequence) -> list[EndedRow]:
        return [row if isinstance(row, EndedRow) else self._ended(row[:]) for row in rows]

    def _row_text(self, completion: Any, row: EndedRow) -> str:
        """A row's text for the record: of messages all of it, calls and thoughts too, which they hold apart."""
        if isinstance(completion, str):
            return completion
        if self.stop_rule.spec.custom:
            return self.stop_rule.text(row[:], row.end)
        return self._tokenizer.decode(row[:], skip_special_tokens=True)

    @property
    def _group_size(self) -> int:
        return self.num_generations if self.model.training else self.num_generations_eval

    def _check_groups(self, inputs: list[dict]) -> None:
        prompts = [row.get("prompt", row) for row in inputs]  # an environment may own the prompts
        check_groups(gather_object(prompts), self._group_size)  # groups may span processes

    def _log_groups(self, rows: list[list[int]]) -> None:
        """Log the share of groups of one text, and on vLLM requests and prompt tokens; raise for copies beyond chance."""
        if self.engine:
            self._log({"vllm/requests": self.engine.requests, "vllm/prompt_tokens": self.engine.prompt_tokens})
        size, everyone = self._group_size, gather_object(rows)  # a group may span processes
        if size < 2 or len(everyone) % size:
            return
        identical = identical_groups(everyone, size)
        self._log({"groups/identical": len(identical) * size / len(everyone)})
        if len(rows) % size:
            return
        # RLOO asks for no log-probs, and of several turns there are the last one's only.
        temperature: Any = (self.args.generation_kwargs or {}).get("temperature", self.temperature)
        judged = self.generation.sampled and self.engine and len(self.engine.logprobs) == len(rows) and temperature > 0
        if judged and (copies := improbable_copies(rows, self.engine.logprobs, size)):
            raise GroupError(
                f"groups {copies[:5]}: the {size} completions of each group are equal, far beyond chance at temperature "
                f"{temperature}. The engine gave every copy of a prompt the same random stream. Give generation_seed=... to "
                "the trainer, and each completion gets its own"
            )

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Sequence):
        plain = [ids[:] for ids in completion_ids_list]  # reward functions read the real last token
        checked = [validated(*each) for each in zip(self.reward_funcs, self.reward_func_names, strict=True)]
        with mock.patch.object(self, "reward_funcs", checked):
            return super()._calculate_rewards(inputs, prompts, completions, plain)

    def _generate_and_score_completions(self, inputs: list):
        self._check_groups(inputs)
        output = super()._generate_and_score_completions(inputs)
        self._log_mismatch(output)
        return output

    def _log_mismatch(self, output: dict) -> None:
        """On vLLM, the raw ratios of trainer to sampler before TRL clips them: after, the maximum is the bound itself."""
        scored, sampled = (output.get(name) for name in ("old_per_token_logps", "sampling_per_token_logps"))
        if scored is None or sampled is None:
            return
        mask = (output["completion_mask"] * output.get("tool_mask", 1)).bool()
        logs = torch.where(sampled.isnan(), 0, scored.double() - sampled.double())[mask]
        lengths = gather_object([n for n in mask.sum(1).tolist() if n])
        if not lengths:  # everything was masked
            return
        report = RatioReport(np.concatenate(gather_object([logs.numpy(force=True)])), tuple(lengths), missing=0)
        numbers = {f"ratio_{q}%": np.exp(np.quantile(report.tokens, q / 100)) for q in (1, 50, 99)}
        numbers |= {"ratios_outside": report.outside, "kl": report.kl()}
        numbers |= {f"ess_{level}s": report.effective_sample_size(level) for level in ("token", "sequence")}
        self._log({f"mismatch/{name}": value for name, value in numbers.items()})


class GRPOTrainer(_Control, trl.GRPOTrainer):
    """`trl.GRPOTrainer` that stops completions as `stops` says, checks its groups, and can record its run.

    Without custom stops and with `explicit_positions=False`, every step equals stock TRL's, before 1.14.2 with one EOS id
    alone: the others count there as no end. With position ids, it still does up to fp32 rounding if the model has rotary
    positions. With learned positions it does not: stock TRL scores padded rows at wrong positions.

    Args:
        model, reward_funcs, args, ..., environment_factory: `trl.GRPOTrainer`'s.
        stops: when completions end: a `StopSpec`, or strings and token ids that end a completion in addition to every EOS,
            e.g. `["</answer>", 151645]`, or a mapping as `generation_kwargs` have it, `{"stop": ["</answer>"]}`. The
            default is every EOS of tokenizer and generation config.
        generation_seed: on vLLM, gives every completion its own random stream, so that a run repeats exactly. By default
            `args.seed` seeds one stream for all completions in process (stock TRL's ignores it), or one for each on a server.
        share_generation: on vLLM, send equal prompts of a batch as one request.
        explicit_positions: pass position ids to each forward pass that has none, while the trainer works. With False pads
            count as text, as in TRL.
        record_dir: run folder for `metrics.jsonl`, `progress.json` and the completions; None records nothing.
        record_steps: steps whose full data are saved for `workbench replay`: numbers, or N for the first and every N-th.

    Attributes:
        sampled_ids: token ids of each completion of the last generation, with what follows its end; empty with several turns.

    Raises:
        ParameterError: stops that cannot match, options that the back end does not know, a `record_dir` that cannot be
            written or holds files of somebody else. All of this is checked before a model or an engine starts.
    """

    def __init__(
        self,
        model: "str | torch.nn.Module",
        reward_funcs: Any = None,
        args: trl.GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: list | None = None,
        optimizers: tuple = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: list[Callable] | None = None,
        rollout_func: Callable | None = None,
        environment_factory: Any = None,
        *,
        stops: Stops = None,
        generation_seed: int | None = None,
        share_generation: bool = False,
        explicit_positions: bool = True,
        record_dir: str | Path | None = None,
        record_steps: int | Collection[int] | None = None,
    ):
        super().__init__(
            model=model,
            reward_funcs=reward_funcs,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            reward_processing_classes=reward_processing_classes,
            callbacks=callbacks,
            optimizers=optimizers,
            quantization_config=quantization_config,
            peft_config=peft_config,
            tools=tools,
            rollout_func=rollout_func,
            environment_factory=environment_factory,
            stops=stops,
            generation_seed=generation_seed,
            share_generation=share_generation,
            explicit_positions=explicit_positions,
            record_dir=record_dir,
            record_steps=record_steps,
        )
        if rollout_func is not None:
            self.rollout_func = self._with_ends(rollout_func)

    def _with_ends(self, rollout_func: Callable) -> Callable:
        """Marks where each row of a rollout function stopped; replaces an empty completion by one masked pad."""

        def rollout(prompts: list, trainer: Any):
            output = rollout_func(prompts, trainer)
            if not {"completion_ids", "logprobs"} <= set(output):
                return output  # TRL says which of its keys are missing
            output = dict(output)  # the user's own stays as it is
            rows, pad = [list(map(int, ids)) for ids in output["completion_ids"]], self._tokenizer.pad_token_id
            cut = End(1, None, "length")
            output["completion_ids"] = [
                self._ended(ids, self._end_before_pads(ids)) if ids else EndedRow([pad], cut, pad) for ids in rows
            ]
            if not all(rows):
                masks = output.get("env_mask") or [[1] * len(ids) for ids in rows]
                output["env_mask"] = [mask if len(mask) else [0] for mask in masks]
                if output["logprobs"] is not None:
                    output["logprobs"] = [row if len(row) else [0.0] for row in output["logprobs"]]
            return output

        return rollout

    def _end_before_pads(self, ids: Sequence[int]) -> End:
        """The end of a row of a rollout function, which may have left the pads of `generate` behind it, all of it kept."""
        pad, sampled = self._tokenizer.pad_token_id, len(ids)
        while sampled > 1 and ids[sampled - 1] == pad and pad not in self.stop_rule.eos_ids:
            sampled -= 1
        return dataclasses.replace(self.stop_rule.last_end(ids[:sampled]), index=len(ids))


class RLOOTrainer(_Control, trl.RLOOTrainer):
    """`trl.RLOOTrainer` that stops completions as `stops` says, on every back end, and can record its run.

    Args:
        model, reward_funcs, args, ..., peft_config: `trl.RLOOTrainer`'s.
        stops, generation_seed, share_generation, explicit_positions, record_dir, record_steps: see `GRPOTrainer`.
    """

    def __init__(
        self,
        model: "str | torch.nn.Module",
        reward_funcs: Any,
        args: trl.RLOOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: list | None = None,
        optimizers: tuple = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        *,
        stops: Stops = None,
        generation_seed: int | None = None,
        share_generation: bool = False,
        explicit_positions: bool = True,
        record_dir: str | Path | None = None,
        record_steps: int | Collection[int] | None = None,
    ):
        super().__init__(
            model=model,
            reward_funcs=reward_funcs,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            reward_processing_classes=reward_processing_classes,
            callbacks=callbacks,
            optimizers=optimizers,
            quantization_config=quantization_config,
            peft_config=peft_config,
            stops=stops,
            generation_seed=generation_seed,
            share_generation=share_generation,
            explicit_positions=explicit_positions,
            record_dir=record_dir,
            record_steps=record_steps,
        )
