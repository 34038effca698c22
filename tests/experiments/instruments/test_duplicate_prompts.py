"""What runs on real vLLM is judged in test_on_vllm.py."""

import gc
import inspect
import tempfile

import pytest
import trl
from trl.generation.vllm_generation import VLLMGeneration

from workbench.errors import RunError
from workbench.experiments.instruments.duplicate_prompts import equal_prompt_batch, make_trainer, removed_rule
from workbench.experiments.recipes import resolve_model
from workbench.training.groups import check_groups


@pytest.mark.parametrize(("equal", "different"), [(0.0, 4), (0.5, 3), (1.0, 1)])
def test_a_batch_has_the_asked_share_of_equal_groups(equal, different):
    rows = [{"prompt": str(n)} for n in range(50)]
    batch = [row["prompt"] for row in equal_prompt_batch(rows, 4, 2, equal)]
    check_groups(batch, 2)
    assert len(batch) == 8 and len(set(batch)) == different


def test_a_trainer_takes_its_folder_with_it(monkeypatch, tmp_path):
    path = resolve_model("search")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    trainer = make_trainer(trl.GRPOTrainer, path, 4, vllm=False)
    (folder,) = tmp_path.iterdir()
    assert trainer.args.output_dir == str(folder)
    del trainer
    gc.collect()
    assert not folder.exists()


def test_the_old_rule_ends_with_its_block_and_needs_its_trl_line(monkeypatch):
    today = VLLMGeneration.generate
    with removed_rule():
        assert VLLMGeneration.generate is not today
    assert VLLMGeneration.generate is today
    monkeypatch.setattr(inspect, "getsource", lambda _: "def generate(self): pass")
    with pytest.raises(RunError, match="the old rule cannot be put back"):
        removed_rule()
