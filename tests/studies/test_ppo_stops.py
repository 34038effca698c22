import pytest
from samples import until_seen

from workbench import StopSpec
from workbench.recipes.recipes import make_recipe
from workbench.studies.arms import train_arms
from workbench.studies.ppo_stops import (
    early_ends,
    one_spec_arms,
    past_the_stop,
    saved_eos,
    several_stops,
    stock_arms,
    stop_costs,
)

pytestmark = pytest.mark.slow

LIMIT = 24


FIELDS = {"max_steps": 2, "per_device_train_batch_size": 8, "max_completion_length": LIMIT, "learning_rate": 1e-5}
RECIPE = make_recipe("starter", **FIELDS)
SPEC = StopSpec(stop=(" the",))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Of the first seed of which told to stop at EOS an update ends before the limit."""
    named = {"legacy": StopSpec.never(), "string": SPEC}
    arms = {
        name: several_stops(RECIPE, stops, missing_eos_penalty=1.0)["several stops"] for name, stops in named.items()
    }
    arms |= stock_arms(RECIPE)
    folder = tmp_path_factory.mktemp("arms")
    return until_seen(
        lambda seed: train_arms(arms, out_dir=folder / str(seed), seeds=[seed]),
        lambda runs: runs["stock, stop_token='eos'"][0].metrics["generation/forwards"].min() < LIMIT,
    )


def test_stock_ppo_runs_to_the_limit_and_loses_its_eos_unless_it_is_told_to_stop(runs):
    spent = {name: members[0].metrics["generation/forwards"].tolist() for name, members in runs.items()}
    assert spent["stock"] == [LIMIT, LIMIT]
    assert min(spent["stock, stop_token='eos'"]) < LIMIT
    assert saved_eos(runs["stock"][0]) is None
    assert saved_eos(runs["stock, stop_token='eos'"][0]) == saved_eos(runs["string"][0]) == 1


def test_rows_that_end_early_are_trained_up_to_their_end_and_scored_as_if_alone():
    rows = early_ends(RECIPE)
    assert len(rows) == 8 and rows["tokens"].nunique() > 1
    assert (rows["tokens"] == rows["in the loss"]).all()
    assert rows["in the batch"].tolist() == pytest.approx(rows["alone"].tolist(), abs=1e-5)
    assert rows["alone"].nunique() > 4


def test_one_spec_ends_rows_of_all_four_trainers(tmp_path):
    def ends(seed):
        trained = train_arms(one_spec_arms(RECIPE, SPEC), out_dir=tmp_path / str(seed), seeds=[seed])
        return past_the_stop(trained, " the")

    table = until_seen(ends, lambda table: (table["with the stop"] > 0).all())
    assert list(table.index) == ["GRPOTrainer", "RLOOTrainer", "OnlineDPOTrainer", "PPOTrainer"]
    assert (table["characters after it"] < 12).all()


def test_legacy_mode_costs_the_whole_limit_and_a_stop_the_longest_row(runs):
    table = stop_costs({name: runs[name] for name in ("legacy", "string")})
    assert table.loc["legacy", "forward passes per update"] == LIMIT
    rows = runs["string"][0].completions
    longest = rows.groupby("step")["completion_tokens"].max()
    assert table.loc["string", "forward passes per update"] == longest.mean()
    assert (table["wasted row-steps"] > 0).all() and (table["wasted row-steps"] < 1).all()
    assert table.loc["string", "stock would punish"] == (rows["trl_finish_reason"] == "length").mean() > 0
    assert table["EOS of the saved policy"].nunique() == 1 and table.loc["legacy", "EOS of the saved policy"] != "None"
