"""What runs on real vLLM is judged in test_on_vllm.py."""

from workbench.recipes.recipes import make_recipe
from workbench.studies.custom_stops import OURS, STOCK_MASKED, STOCK_UNMASKED, ObservedGRPOTrainer, custom_stop_arms
from workbench.training.grpo import GRPOTrainer


def test_stock_is_told_by_generation_kwargs_and_the_workbench_by_its_stops():
    arms = custom_stop_arms(make_recipe("search", dataset="search", backend="vllm"), "</search>")
    assert {name: arm.trainer for name, arm in arms.items()} == {
        STOCK_MASKED: ObservedGRPOTrainer,
        STOCK_UNMASKED: ObservedGRPOTrainer,
        OURS: GRPOTrainer,
    }
    assert {arm.stops.stop for arm in arms.values()} == {("</search>",)}
    masked = {name: arm.options["mask_truncated_completions"] for name, arm in arms.items()}
    assert masked == {STOCK_MASKED: True, STOCK_UNMASKED: False, OURS: True}
    assert arms[STOCK_MASKED].options["generation_kwargs"]["stop"] == ["</search>"]
    assert "generation_kwargs" not in arms[OURS].options
