import pytest

from workbench import StopSpec
from workbench.errors import ParameterError
from workbench.studies.ppo_stops import ppo_stop_arms, score_tails, stop_costs
from workbench.studies.seeds import train_arms
from workbench.training.recipes import make_recipe

pytestmark = pytest.mark.slow

LIMIT = 24


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    fields = {"max_steps": 2, "per_device_train_batch_size": 8, "max_completion_length": LIMIT, "learning_rate": 1e-5}
    modes = {"legacy": StopSpec.legacy_mode(), "string": StopSpec(strings=(" the",))}
    arms = ppo_stop_arms(make_recipe("starter", **fields), modes, missing_eos_penalty=1.0)
    return train_arms(arms, out_dir=tmp_path_factory.mktemp("arms"), seeds=[0])


def test_legacy_mode_costs_the_whole_limit_and_a_stop_the_longest_row(runs):
    table = stop_costs(runs)
    assert table.loc["legacy", "forwards per update"] == LIMIT
    longest = runs["string"][0].completions.groupby("step")["completion_tokens"].max()
    assert table.loc["string", "forwards per update"] == longest.mean()
    assert (table["wasted row-steps"] > 0).all() and (table["wasted row-steps"] < 1).all()
    assert table.loc["string", "stock would punish"] > 0.3
    assert table["EOS of the saved policy"].nunique() == 1 and table.loc["legacy", "EOS of the saved policy"] != "None"


def test_text_after_eos_moves_scores_and_a_row_without_such_text_keeps_its_own(runs):
    tails = score_tails(runs["legacy"][0], rows=16, seed=1)
    same = tails["tokens_to_eos"] == LIMIT
    assert (tails["tokens"] == LIMIT).all() and not same.all()
    assert (tails["whole"] - tails["cut"])[same].abs().max() < 1e-5 or not same.any()
    assert (tails["whole"] - tails["cut"])[~same].abs().max() > 1e-3
    with pytest.raises(ParameterError, match="its rows stop early"):
        score_tails(runs["string"][0])
