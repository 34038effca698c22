import pytest

from workbench import StopSpec
from workbench.studies.ppo_stops import (
    early_ends,
    one_spec_arms,
    past_the_stop,
    saved_eos,
    several_stops,
    stock_arms,
    stop_costs,
)
from workbench.studies.seeds import train_arms
from workbench.training.recipes import make_recipe

pytestmark = pytest.mark.slow

LIMIT = 24


FIELDS = {"max_steps": 2, "per_device_train_batch_size": 8, "max_completion_length": LIMIT, "learning_rate": 1e-5}
RECIPE = make_recipe("starter", **FIELDS)
SPEC = StopSpec(strings=(" the",))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    named = {"legacy": StopSpec.legacy_mode(), "string": SPEC}
    arms = {
        name: several_stops(RECIPE, stops, missing_eos_penalty=1.0)["several stops"] for name, stops in named.items()
    }
    arms |= stock_arms(RECIPE)
    return train_arms(arms, out_dir=tmp_path_factory.mktemp("arms"), seeds=[0])


def test_stock_ppo_runs_to_the_limit_and_loses_its_eos_unless_it_is_told_to_stop(runs):
    spent = {name: members[0].metrics["generation/forwards"].tolist() for name, members in runs.items()}
    assert spent["stock"] == [LIMIT, LIMIT]
    assert max(spent["stock, stop_token='eos'"]) < LIMIT
    assert saved_eos(runs["stock"][0]) is None
    assert saved_eos(runs["stock, stop_token='eos'"][0]) == saved_eos(runs["string"][0]) == 1


def test_rows_that_end_early_are_trained_up_to_their_end_and_scored_as_if_alone():
    rows = early_ends(RECIPE)
    assert len(rows) == 8 and rows["tokens"].nunique() > 2
    assert (rows["tokens"] == rows["in the loss"]).all()
    assert rows["in the batch"].tolist() == pytest.approx(rows["alone"].tolist(), abs=1e-5)
    assert rows["alone"].nunique() > 4


def test_one_spec_ends_rows_of_all_four_trainers(tmp_path):
    trained = train_arms(one_spec_arms(RECIPE, SPEC), out_dir=tmp_path, seeds=[0])
    table = past_the_stop(trained, " the")
    assert list(table.index) == ["GRPOTrainer", "RLOOTrainer", "OnlineDPOTrainer", "PPOTrainer"]
    assert (table["with the stop"] > 0).all() and (table["characters after it"] < 12).all()


def test_legacy_mode_costs_the_whole_limit_and_a_stop_the_longest_row(runs):
    table = stop_costs({name: runs[name] for name in ("legacy", "string")})
    assert table.loc["legacy", "forward passes per update"] == LIMIT
    longest = runs["string"][0].completions.groupby("step")["completion_tokens"].max()
    assert table.loc["string", "forward passes per update"] == longest.mean()
    assert (table["wasted row-steps"] > 0).all() and (table["wasted row-steps"] < 1).all()
    assert table.loc["string", "stock would punish"] > 0.3
    assert table["EOS of the saved policy"].nunique() == 1 and table.loc["legacy", "EOS of the saved policy"] != "None"
