import pytest

from workbench import length_reward
from workbench.recipes.recipes import make_recipe, resolve_model
from workbench.studies.arms import train_arms
from workbench.studies.positions import EXPLICIT, IMPLICIT, convergence_table, paired_gain, position_arms, value_table

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    fields = {"max_steps": 2, "num_generations": 2, "per_device_train_batch_size": 8, "max_completion_length": 8}
    arms = position_arms(make_recipe("starter-gpt2", **fields), reward_funcs=length_reward(20), monitor_every=1)
    return train_arms(arms, out_dir=tmp_path_factory.mktemp("arms"), seeds=[0, 1])


def test_without_position_ids_the_trainer_s_scores_depend_on_padding_and_with_them_they_do_not(runs):
    worst = convergence_table(runs).groupby("variant")["padding, max difference"].max()
    assert worst[IMPLICIT] > 0.1
    assert worst[EXPLICIT] < 1e-4


def test_the_gain_is_paired_by_seed(runs):
    ends = convergence_table(runs, tail=1).set_index(["variant", "run"])["reward, last 1 steps"]
    assert paired_gain(runs, tail=1) == pytest.approx([ends[EXPLICIT, n] - ends[IMPLICIT, n] for n in (0, 1)])


def test_a_value_behind_pads_moves_without_position_ids_only():
    table = value_table(resolve_model("starter-gpt2"), [[5, 6, 7, 8], [9, 10, 11]], pads=(0, 8)).set_index("extra pads")
    assert table.loc[8, "without position ids"] > 0.1
    assert (table["with them"] < 1e-3).all()
