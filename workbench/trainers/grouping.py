"""Group checks for GRPO and RLOO, at every step and on every back end: one prompt a group, and samples that differ."""

import hashlib
import json

import torch

from ..groups import GroupError, check_groups, identical_groups
from .engine import improbable_copies


class GroupingMixin:
    """Refuses a batch whose groups are not G completions of one prompt, or G copies of one sample.

    Logs `groups/identical`, the share of groups whose completions are all the same: a sharp policy has such groups rightly,
    and learns nothing from them.
    """

    def _generate_and_score_completions(self, inputs):
        self._check_layout([row["prompt"] for row in inputs])
        return super()._generate_and_score_completions(inputs)

    def _group_size(self) -> int:
        return self.num_generations if self.model.training else self.num_generations_eval

    def _check_layout(self, prompts: list) -> None:
        if self.accelerator.num_processes == 1:
            check_groups(prompts, None, self._group_size())
            return
        digests = torch.tensor([_digest(p) for p in prompts], device=self.accelerator.device)
        everywhere = self.accelerator.gather(digests).tolist()
        try:
            check_groups(everywhere, None, self._group_size())  # groups may span processes
        except GroupError as error:
            raise GroupError(f"over all processes, prompts shown by their hashes: {error}") from None

    def _generate(self, prompts):
        generated = super()._generate(prompts)
        rows, size = [list(ids[:]) for ids in generated[1]], self._group_size()
        if size > 1 and len(rows) % size == 0:
            identical = identical_groups(rows, size)
            self._metrics["train" if self.model.training else "eval"]["groups/identical"].append(
                len(identical) * size / len(rows)
            )
            if identical and self.use_vllm and self.temperature > 0:
                self._refuse_copies(rows, size)
        return generated

    def _refuse_copies(self, rows: list[list[int]], size: int) -> None:
        if copies := improbable_copies(rows, self.engine_tap.logprobs, size):
            raise GroupError(
                f"groups {copies[:5]}: their {size} completions are the same, far beyond chance at temperature "
                f"{self.temperature}. The engine gave every copy the same random stream; give generation_seed=... to the "
                "trainer, which seeds each completion for itself"
            )


def _digest(prompt) -> int:
    text = json.dumps(prompt, sort_keys=True, default=str)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)
