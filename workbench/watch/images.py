"""Images in the rows of a step: the loss takes each row with the images that it was generated with."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from trl.trainer.utils import split_pixel_values_by_grid

from ..replay.report import Stage
from ..replay.stages import places
from ..training.step_record import StepRecord

BY_ROW_ALONE = ("sampling", "log-probs", "teacher", "reference", "mismatch", "gradient")


def has_images(record: StepRecord) -> bool:
    return any("pixel_values" in micro.inputs for micro in record.micro_batches)


def unknown_with_images(stage: Stage) -> Stage:
    """The stages that score a row alone do not know its images."""
    if stage.name not in BY_ROW_ALONE:
        return stage
    return Stage(stage.name, "cannot tell", "rows hold images, and check_step scores a row alone without them")


def check_images(record: StepRecord) -> Stage:
    """Check that each row of the loss has the pixels with which the row of its prompt and tokens was generated."""
    generated: dict[tuple, list[torch.Tensor]] = {}
    for output in record.outputs:
        for key, pixels in _rows(output):
            generated.setdefault(key, []).append(pixels)
    rows = [row for micro in record.micro_batches for row in _rows(micro.inputs)]
    if not rows or not generated:
        return Stage("images", "cannot tell", "the images of a row are not known: pixels are not in the order of rows")
    wrong = [i for i, (key, pixels) in enumerate(rows) if not _is_among(pixels, generated.get(key, []))]
    if wrong:
        cause = f"{len(wrong)} of {len(rows)} rows of the loss have other images than they were generated with"
        return Stage("images", "different", cause, float(len(wrong)), places(wrong))
    return Stage("images", "same", f"{len(rows)} rows have the images that they were generated with")


def _rows(tables: Mapping[str, Any]) -> Iterator[tuple[tuple, torch.Tensor]]:
    """Prompt and tokens of each row without their padding, and its pixels; nothing where pixels have another order."""
    pixels = split_pixel_values_by_grid(dict(tables)).get("pixel_values", ())
    if len(pixels) != len(tables["prompt_ids"]):
        return
    for i, own in enumerate(pixels):
        prompt, ids = tables["prompt_ids"][i], tables["completion_ids"][i]
        there = tables["completion_mask"][i].bool()
        yield (tuple(prompt[tables["prompt_mask"][i].bool()].tolist()), tuple(ids[there].tolist())), own


def _is_among(pixels: torch.Tensor, others: list[torch.Tensor]) -> bool:
    return any(pixels.shape == other.shape and torch.equal(pixels, other) for other in others)
