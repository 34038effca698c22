"""What pads and another batch size do to log-probs in bf16."""

from workbench.experiments.instruments.bf16_padding import ANOTHER_SIZE, bf16_changes
from workbench.experiments.recipes import load_prompts, resolve_model


def test_pads_move_learned_positions_and_ids_undo_it():
    texts = [row["prompt"] + row["completion"] for row in load_prompts("starter").select(range(0, 700, 100))]
    changes = bf16_changes(resolve_model("starter-gpt2"), texts)
    assert len(changes) == 7 and ANOTHER_SIZE in changes
    without, fixed = (changes[f"left pads, {how}"] for how in ("no position ids", "position ids"))
    assert (without > 0.1).all() and (fixed < without / 4).all()
    assert (changes["right pads, no position ids"] < without / 4).all()
