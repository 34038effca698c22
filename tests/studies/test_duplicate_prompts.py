"""What runs on real vLLM is judged in test_on_vllm.py."""

import gc
import tempfile

import pytest
import trl

from workbench.recipes.recipes import resolve_model
from workbench.studies.duplicate_prompts import equal_prompt_batch, make_trainer, sampler_layout, show_layout
from workbench.training.groups import check_groups


def test_trl_s_sampler_repeats_each_prompt_in_groups_and_uses_every_prompt_once():
    layout = sampler_layout(prompts=6, num_generations=4, prompts_per_batch=3, seed=1)
    for batch in layout:
        check_groups(batch, 4)
    assert sorted(prompt for batch in layout for prompt in batch[::4]) == list(range(6))
    assert layout != sampler_layout(prompts=6, num_generations=4, prompts_per_batch=3, seed=2)


@pytest.mark.parametrize(("equal", "different"), [(0.0, 4), (0.5, 3), (1.0, 1)])
def test_a_batch_has_the_asked_share_of_equal_groups(equal, different):
    rows = [{"prompt": str(n)} for n in range(50)]
    batch = [row["prompt"] for row in equal_prompt_batch(rows, 4, 2, equal)]
    check_groups(batch, 2)
    assert len(batch) == 8 and len(set(batch)) == different


def test_the_layout_is_drawn_with_a_text_of_every_batch():
    shown = show_layout([[0, 0, 1, 1], [2, 2, 0, 0]], 2)
    assert "batch 0: prompts 0, 1; batch 1: prompts 2, 0" in shown.alt
    assert shown.table.shape == (2, 5)


def test_a_trainer_takes_its_folder_with_it(monkeypatch, tmp_path):
    path = resolve_model("search")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    trainer = make_trainer(trl.GRPOTrainer, path, 4, vllm=False)
    (folder,) = tmp_path.iterdir()
    assert trainer.args.output_dir == str(folder)
    del trainer
    gc.collect()
    assert not folder.exists()
