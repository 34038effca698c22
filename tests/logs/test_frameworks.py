"""Logs of other frameworks and of loops of one's own, each made up here in the form that its own code prints or writes."""

import json

import pytest

from workbench.errors import RunError
from workbench.logs.read import read, read_logs
from workbench.logs.rows import Rows

# Console output -> metrics of its steps. Each has the form of the release that docs/reference/audit.md names.
CONSOLES = {
    "a loop": (
        "".join(f"2026-01-01 10:00:00 INFO Step {n}/3 | loss: 0.1 | mean_reward: 0.{n} | acc: 50%\n" for n in (1, 2, 3)),
        {"step": [1, 2, 3], "reward": [0.1, 0.2, 0.3], "loss": [0.1] * 3},
    ),
    "a loop that prints thousands": (
        "".join(f"10:11,500 Step {n},000 | loss: 0.1 | reward: 0.{n} | gen_len: {n},024 | mean_kl: {n}.5k\n" for n in (1, 2)),
        {"step": [1000, 2000], "reward": [0.1, 0.2], "mean_length": [1024, 2024], "kl": [1500, 2500]},
    ),
    "a loop that prints as Keras does": (
        "".join(f"Step {n}/2 - loss: -0.1 - reward: {n}.5%\n" for n in (1, 2)),
        {"step": [1, 2], "reward": [0.015, 0.025], "loss": [-0.1] * 2},
    ),
    "a loop whose steps begin again in each epoch": (
        "".join(f"[Epoch {e}/2] [Step {n}/2] loss=0.1 reward=0.{e}{n}\n" for e in (1, 2) for n in (1, 2)),
        {"step": [1, 2, 3, 4], "reward": [0.11, 0.12, 0.21, 0.22]},
    ),
    "a loop that evaluates": (
        "".join(
            f"[TRAIN] Step {n} | loss: 0.1 | reward: 0.{n}\n[EVAL] Step {n} | loss: 9 | reward: 9\n"
            f"Eval | step {n} | loss: 9 | reward: 9\n"
            for n in (1, 2)
        ),
        {"step": [1, 2], "reward": [0.1, 0.2], "loss": [0.1] * 2},
    ),
    "a run that is called test": (
        "".join(f"[test] Step {n} | loss: 0.1 | reward: 0.{n}\n" for n in (1, 2)),
        {"step": [1, 2], "reward": [0.1, 0.2]},
    ),
    "pairs apart by blanks": (
        "".join(f"[run] {n:3}/9 loss=-0.5 reward=0.{n} kl=1e-3\n" for n in (1, 2)),
        {"step": [1, 2], "reward": [0.1, 0.2], "loss": [-0.5] * 2, "kl": [0.001] * 2},
    ),
    "a progress bar": (
        "".join(f" 10%|█   | {n}/20 [00:10<05:00,  1.20s/it, loss=0.5, reward=0.{n}]\r" for n in (2, 4)),
        {"step": [2, 4], "reward": [0.2, 0.4]},
    ),
    "minimind": (
        "".join(f"Epoch:[1/1]({n}/99), Reward: -1.{n}, KL_ref: 0.01, Actor Loss: 0, Avg Response Len: 82.5\n" for n in (3, 4)),
        {"step": [3, 4], "reward": [-1.3, -1.4], "mean_length": [82.5] * 2, "kl": [0.01] * 2},
    ),
    "mlx-lm-lora": (
        "Iter 1: Val loss 9.0, Val total_rewards_mean 9.0, Val took 3s\n"
        + "".join(f"Iter {n}: Train loss 0.5, Total rewards mean 0.{n}, KL 0.1, Learning Rate 1e-05\n" for n in (1, 2)),
        {"step": [1, 2], "reward": [0.1, 0.2], "loss": [0.5] * 2, "kl": [0.1] * 2},
    ),
    "prime-rl, orchestrator": (
        "".join(
            f"10:00:0{n} SUCCESS Step {n} |    1.2s | Reward 0.{n}000 | Trainable 8/8 (100.0%) | Turns 1.0 | Truncation 12.5%\n"
            "10:00:01    INFO Starting orchestrator step 9\n"
            for n in (1, 2)
        ),
        {"step": [1, 2], "reward": [0.1, 0.2], "clipped_ratio": [0.125] * 2},
    ),
    "prime-rl, trainer": (
        "".join(
            f"[default0]:10:00:00 SUCCESS Step {n} | Time: 4.29s | Loss: 0.0000 | Entropy: 0.3{n} | Mismatch KL: 0.0007 | "
            "Grad. Norm: 0.0000 | LR: 3.00e-06 | Throughput: 3964 tokens/s | MFU: 5.4% | Peak Mem.: 17.4 GiB\n"
            for n in (8, 9)
        ),
        {"step": [8, 9], "grad_norm": [0, 0], "entropy": [0.38, 0.39], "mismatch_kl": [0.0007] * 2},
    ),
    "slime": (
        "".join(
            f"(Manager pid=1) rollout.py:9 - perf {n}: {{'rollout/response_len/mean': 90.0, 'rollout/truncated_ratio': 0.5}}\n"
            f"(Actor pid=2) data.py:1 - rollout {n}: {{'rollout/rewards': 1e-9, 'rollout/raw_reward': 0.{n + 2}}}\n"
            f"(Actor pid=2) model.py:1 - step {n}: {{'train/loss': 0.1, 'train/pg_clipfrac': 0.0, 'train/grad_norm': 2.0, "
            "'train/train_rollout_logprob_abs_diff': 0.02, 'train/lr-pg_0': 1e-06}\n"
            for n in (0, 1)
        ),
        {"step": [0, 1], "reward": [0.2, 0.3], "mean_length": [90, 90], "clipped_ratio": [0.5] * 2, "grad_norm": [2, 2],
         "logp_difference": [0.02] * 2, "learning_rate": [1e-6] * 2},
    ),
    "OpenRLHF": (
        "".join(
            f"(PPOTrainer pid=3) ppo_trainer.py:5] ✨ Global step {n}: {{'response_length': 40.5,'rollout/reward_mean': 0.{n}, "
            "'rollout/truncated_rate': 0.25, 'group_reward_std': 0.1, 'policy_loss': -0.1, 'actor_lr': 5e-07}\n"
            for n in (1, 2)
        ),
        {"step": [1, 2], "reward": [0.1, 0.2], "mean_length": [40.5] * 2, "clipped_ratio": [0.25] * 2, "loss": [-0.1] * 2},
    ),
    "OpenRLHF without its truncated rate": (
        "".join(
            f"(PPOTrainer pid=3) ppo_trainer.py:5] ✨ Global step {n}: {{'response_length': 40.5, 'response_clip_ratio': 0.25, "
            f"'reward': 0.{n}, 'policy_loss': -0.1, 'actor_lr': 5e-07}}\n"
            for n in (1, 2)
        ),
        {"step": [1, 2], "reward": [0.1, 0.2], "mean_length": [40.5] * 2, "clipped_ratio": [0.25] * 2},
    ),
    "SkyRL": (
        "".join(
            f"(entrypoint pid=4) 10:00 | INFO | Step {n}: \n"
            f"(entry pid=4) {{'generate/avg_num_tokens': '345.0',\n(entrypoint pid=4)  'policy/policy_entropy': '0.4000',\n"
            f"(entrypoint pid=4)  'reward/avg_raw_reward': '0.{n}000',\n(entrypoint pid=4)  'trainer/global_step': {n}}}\n"
            for n in (5, 6)
        ),
        {"step": [5, 6], "reward": [0.5, 0.6], "mean_length": [345, 345], "entropy": [0.4, 0.4]},
    ),
    "NeMo-RL": (
        "".join(
            f"\n========================= Step {n}/9 =========================\n▶ Generating responses...\n\n"
            f"📊 Training Results:\n  • Loss: 0.0100\n  • Generation KL Error: 0.0010\n  • Avg Reward: 0.{n}000\n"
            "  • Mean Generation Length: 201.5\n\n⏱️  Timing:\n  • Total step time: 35.70s\n"
            for n in (1, 2)
        ),
        {"step": [1, 2], "reward": [0.1, 0.2], "mean_length": [201.5] * 2, "mismatch_kl": [0.001] * 2},
    ),
    "a decimal comma": (
        "".join(f"Step {n} | loss: 0,01{n} | reward: 1,20{n} | tokens: 1,024 | kl: 0,001\n" for n in (1, 2)),
        {"step": [1, 2], "loss": [0.011, 0.012], "reward": [1.201, 1.202], "kl": [0.001] * 2},
    ),
    "thousands, and a list that begins with 0": (
        "".join(f"Step {n} | gpus: 0,1 | loss: 0.1 | reward: 1,20{n}\n" for n in (1, 2)),
        {"step": [1, 2], "loss": [0.1] * 2, "reward": [1201, 1202]},
    ),
    "words that begin as infinity and nan do": (
        "".join(f"10:12:01,101 - reward - INFO - Step {n} - loss: 0.1 - mean_reward: 0.{n} - host: nano7\n" for n in (1, 2)),
        {"step": [1, 2], "loss": [0.1] * 2, "reward": [0.1, 0.2]},
    ),
    "epochs that stand above their steps": (
        "".join(
            f"=== Epoch {epoch}/2 ===\n" + "".join(f"Step {n}/2 | loss: 0.1 | reward: 0.{epoch}{n}\n" for n in (1, 2))
            for epoch in (1, 2)
        ),
        {"step": [1, 2, 3, 4], "epoch": [1, 1, 2, 2], "reward": [0.11, 0.12, 0.21, 0.22]},
    ),
    "colons and single blanks": (
        "".join(f"Step {n} loss: 0.1 reward: 0.{n} kl: 0.001\n" for n in (1, 2)),
        {"step": [1, 2], "loss": [0.1] * 2, "kl": [0.001] * 2},
    ),
    "a train_step": (
        "".join(f"train_step: {n} | loss: 0.1 | reward: 0.{n}\n" for n in (1, 2)),
        {"step": [1, 2], "loss": [0.1] * 2, "reward": [0.1, 0.2]},
    ),
    "dicts in colours": (
        "".join(f"{{\x1b[32m'loss'\x1b[0m: 0.1, 'reward': \x1b[36m0.{n}\x1b[0m, 'epoch': 0.{n}}}\n" for n in (1, 2)),
        {"loss": [0.1] * 2, "reward": [0.1, 0.2]},
    ),
    "AReaL": (
        "".join(
            f"20260101-10:00:00 StatsLogger INFO: Epoch 1/5 Step {n}/40 Train step {n}/200 done.\n"
            "╒═══════════════════════════╤════════════╤═══════════════════════════════╤════════════╕\n"
            f"│ ppo_actor/task_reward/avg │ {n}.0000e-01 │ ppo_actor/no_eos_ratios/avg   │ 5.0000e-01 │\n"
            "├───────────────────────────┼────────────┼───────────────────────────────┼────────────┤\n"
            "│ ppo_actor/update/lr       │ 1.0000e-06 │ ppo_actor/update/grad_norm    │ 2.0000e+00 │\n"
            for n in (1, 2)
        ),
        {"step": [1, 2], "reward": [0.1, 0.2], "clipped_ratio": [0.5] * 2, "grad_norm": [2, 2]},
    ),
    "AReaL, whose actor is called grpo_actor": (
        "".join(
            f"2026-01-01T10:00:00Z StatsLogger INFO: Epoch 1/1 Step {n}/9 Train step {n}/9 done.\n"
            "2026-01-01T10:00:00Z ╒════════════════════════════╤═════════════╤══════════════════════════════╤════════════╕\n"
            f"2026-01-01T10:00:00Z │ grpo_actor/task_reward/avg │  {n}.0000e-01 │ grpo_actor/no_eos_ratios/avg │ 5.0000e-01 │\n"
            "2026-01-01T10:00:00Z │ grpo_actor/lr              │  1.0000e-06 │ grpo_actor/grad_norm         │ 0.0000e+00 │\n"
            "2026-01-01T10:00:00Z │ grpo_actor/entropy/avg     │  3.0000e-01 │ grpo_actor/actor_loss/avg    │ -1.000e-04 │\n"
            for n in (1, 2)
        ),
        {"step": [1, 2], "reward": [0.1, 0.2], "clipped_ratio": [0.5] * 2, "grad_norm": [0, 0], "entropy": [0.3] * 2,
         "learning_rate": [1e-6] * 2, "loss": [-1e-4] * 2},
    ),
    "tinker-cookbook": (
        "".join(
            f"               Step {n}\n┏━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━┓\n┃ Metric               ┃ Value    ┃\n"
            f"│ env/all/reward/total │ 0.{n}00000 │\n│ optim/entropy        │ 0.400000 │\n"
            for n in (1, 2)
        ),
        {"step": [1, 2], "reward": [0.1, 0.2], "entropy": [0.4, 0.4]},
    ),
    "open-instruct": (
        "".join(
            "╭──────────────── Metrics ────────────────╮\n"
            f"│ objective  verifiable_reward: 4.00      │\n│ other      scores: 0.{n} | training_step: {n} | lr: 5e-07 │\n"
            "│ val        sequence_lengths: 123.00 | stop_rate: 0.75 │\n╰─────────────────────────────────────────╯\n"
            for n in (1, 2)
        ),
        {"step": [1, 2], "reward": [0.1, 0.2], "mean_length": [123, 123], "clipped_ratio": [0.25] * 2},
    ),
    "a table of Markdown": (
        "text\n\n| Step | Training Loss | reward | rewards / f | notes |\n|---|---:|:--|-- | --|\n"
        + "".join(f"| {n} | 0.0{n} | -0.{n} | 0.5 | as it is |\n" for n in (1, 2)),
        {"step": [1, 2], "reward": [-0.1, -0.2], "loss": [0.01, 0.02]},
    ),
    "a table without borders, or with tabs": (
        "Step | Training Loss | reward\n-- | -- | --\n1 | 0.1 | 0.3\n\nStep\tTraining Loss\treward\n2\t0.2\t0.4\n",
        {"step": [1, 2], "reward": [0.3, 0.4]},
    ),
    "right answers of so many": (
        "".join(f"Step {n} | loss: 0.1 | reward: {n}/8 | epoch: 1/3 | length: 512/1024\n" for n in (2, 4)),
        {"step": [2, 4], "reward": [0.25, 0.5], "epoch": [1, 1]},
    ),
    "a row without its brace": (
        "'loss': 0.1, 'reward': 0.5, 'grad_norm': 2.0, 'global_step/max_steps': '5/9', 'epoch': 0.1}\n",
        {"step": [5], "reward": [0.5], "grad_norm": [2]},
    ),
}  # fmt: skip


def saved(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(("text", "metrics"), CONSOLES.values(), ids=CONSOLES)
def test_a_console_log_is_read(tmp_path, text, metrics):
    noise = "INFO: loading reward model at 10:00:00\nCollecting trl==1.16.0\n"
    log = read(saved(tmp_path / "train.log", noise + text + noise))
    assert {name: log.steps[name].tolist() for name in metrics} == {n: pytest.approx(v) for n, v in metrics.items()}
    assert len(log.steps) == len(next(iter(metrics.values()))) and not [d for d in log.damage if "counted" not in d]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_slimes_rollouts_stand_at_the_first_step_they_train(tmp_path, k):
    """With several steps each, rollout 2 had stood at step 2, which trains on rollout 0 or 1."""
    text = "".join(
        f"rollout.py:9 - rollout {n}: {{'rollout/raw_reward': 0.{n}, 'rollout/truncated_ratio': 0.5}}\n"
        + "".join(
            f"model.py:1 - step {s}: {{'train/loss': 0.1, 'train/grad_norm': {s}.0, 'train/pg_clipfrac': 0.1}}\n"
            for s in range(n * k, n * k + k)
        )
        + f"perf.py:1 - perf {n}: {{'rollout/response_len/mean': {n}.5, 'perf/step_time': 9.0}}\n"
        for n in range(5)
    )
    log = read(saved(tmp_path / "train.log", text))
    assert log.steps["step"].tolist() == log.steps["grad_norm"].tolist() == list(range(5 * k))
    for name, first in (("reward", 0.0), ("mean_length", 0.5)):
        logged = log.steps.set_index("step")[name].dropna()
        slope = 0.1 if name == "reward" else 1
        assert logged.index.tolist() == [k * n for n in range(5)]
        assert logged.tolist() == pytest.approx([first + slope * n for n in range(5)])


@pytest.mark.parametrize(("name", "sign"), [("entropy_loss", -1), ("entropy_loss", 1), ("actor/entropy_loss", 1)])
def test_an_entropy_that_is_logged_as_a_loss_is_one(tmp_path, name, sign):
    rows = "".join(f"{n},0.5,{sign * n / 8}\n" for n in range(1, 9))
    log = read(saved(tmp_path / "a.csv", f"step,reward,{name}\n{rows}"))
    assert log.metric("entropy").tolist() == [n / 8 for n in range(1, 9)]


NO_LOGS = {
    "prose": "At step 5 the loss: 0.3 was low, and the reward = 0.2, so we went on.\nBy step 9 our reward: 0.4 was better.\n",
    "supervised": "".join(f"Step {n} | loss=1.5 | lr=2e-4 | grad_norm: 0.5 | 66.0s\n" for n in range(9)),
    "pip": "Collecting trl==1.16.0\n  Downloading trl-1.16.0.whl (564 kB)\n   ━━━ 564.1/564.1 kB 12.3 MB/s eta 0:00:00\n",
    "CI": "Step 3/12 : RUN pip install x\ntests/test_reward.py::test_loss PASSED [ 50%]\nran: 214, passed: 210, failed: 4\n",
    "episodes": "".join(f"Episode: {n}, Actions: 2351, reward: -18, Time: 4.2, T/A: 1.7ms\n" for n in range(9)),
    "samples": "".join(f"[DEBUG] gen[{n}] reward=-1.95\n" for n in range(9)),
    "a table of runs": "| run | loss | reward |\n|--|--|--|\n| 1 | 0.5 | 0.3 |\n",
    "a DPO table": "| Step | Training Loss | rewards / chosen | rewards / rejected |\n|-|-|-|-|\n| 1 | 0.6 | 0.1 | -0.1 |\n",
}


@pytest.mark.parametrize("text", NO_LOGS.values(), ids=NO_LOGS)
def test_what_is_no_log_is_refused(tmp_path, text):
    with pytest.raises(RunError, match="no line like"):
        read(saved(tmp_path / "a.txt", text))


def test_a_loss_that_is_none_is_no_number(tmp_path):
    lines = [f"Step {n} | loss: {0.1 if n < 9 else None} | reward: 0.{n} | kl: None\n" for n in range(1, 21)]
    log = read(saved(tmp_path / "train.log", "".join(lines)))
    assert len(log.steps) == 20 and log.steps["loss"].isna().sum() == 12 and len(log.raw("loss")) == 20
    assert log.raw("kl") is None  # which is not computed where beta is 0


def lines_of_json(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


METRICS = {
    "tinker-cookbook": (
        {"progress/batch": 3, "env/all/reward/total": 0.5, "env/all/ac_tokens_per_turn": 90.0, "optim/entropy": 0.4,
         "optim/kl_sample_train_v1": 0.001, "env/all/by_group/frac_mixed": 0.5, "env/all/by_group/frac_all_good": 0.2,
         "env/all/by_group/frac_all_bad": 0.3},
        {"reward": 0.5, "mean_length": 90, "mismatch_kl": 0.001, "zero_std_share": 0.5, "all_bad_share": 0.3},
    ),
    "rllm, counts": (
        {"training/global_step": 3, "critic/score/mean": 1, "batch/solve_none": 12, "batch/solve_all": 4,
         "batch/solve_partial": 16},
        {"all_bad_share": 0.375, "all_good_share": 0.125, "zero_std_share": 0.5},
    ),
    "NeMo-RL": (
        {"step": 3, "reward": 0.5, "mean_gen_tokens_per_sample": 90.0, "truncation_rate": 0.1, "gen_kl_error": 0.001,
         "baseline_reward/pct_0": 25.0,
         "baseline_reward/pct_1": 25.0, "baseline_reward/pct_mixed": 50.0},
        {"reward": 0.5, "mean_length": 90, "zero_std_share": 0.5, "clipped_ratio": 0.1},
    ),
    "open-instruct": (
        {"training_step": 3, "scores": 0.5, "val/sequence_lengths": 90.0, "loss/policy_avg": 0.1, "policy/entropy_avg": 0.4},
        {"reward": 0.5, "mean_length": 90, "loss": 0.1, "entropy": 0.4},
    ),
    "TRL's OnlineDPO": (
        {"step": 3, "objective/scores": 0.5, "val/contain_eos_token": 0.75, "rewards/chosen": 0.1, "rewards/rejected": -0.2},
        {"reward": 0.5, "clipped_ratio": 0.25},
    ),
    "prime-rl": (
        {"step": 3, "reward/mean": 0.5, "is_truncated/mean": 0.1, "entropy/all/mean": 0.4, "mismatch_kl/all/mean": 0.001,
         "optim/grad_norm": 2.0, "zero_advantage": 0.25},
        {"reward": 0.5, "clipped_ratio": 0.1, "mismatch_kl": 0.001, "zero_std_share": 0.25},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("row", "metrics"), METRICS.values(), ids=METRICS)
def test_names_of_another_framework_are_known(tmp_path, row, metrics):
    log = read(saved(tmp_path / "metrics.jsonl.txt", lines_of_json([row, row | {next(iter(row)): 4}])))
    assert log.steps["step"].tolist() == [3, 4]
    assert {name: log.steps[name][0] for name in metrics} == pytest.approx(metrics)
    assert not log.parts  # the log-ratios of pairs are no parts of a reward


def test_columns_as_lists_are_read_if_an_evaluation_has_fewer(tmp_path):
    columns = {"rewards_avg": [0.1, 0.2, 0.3], "kl_avg": [0, 0.1, 0.2], "val_accuracy": [0.5]}
    log = read(saved(tmp_path / "a.json", json.dumps(columns)))
    assert log.metric("reward").tolist() == [0.1, 0.2, 0.3] and log.metric("kl").tolist() == [0, 0.1, 0.2]


def test_the_summary_of_wandb_is_one_step_and_read_last(tmp_path):
    row = {"train/reward": 0.5, "train/global_step": 70, "train_runtime": 9.5, "_wandb": {"runtime": 9}}
    saved(tmp_path / "wandb-summary.json", json.dumps(row))
    log = read(tmp_path)
    assert (log.kind, log.steps["step"].tolist(), log.metric("reward")[0]) == ("W&B's summary", [70], 0.5)
    saved(tmp_path / "output.log", CONSOLES["a loop"][0])
    assert len(read(tmp_path).steps) == 3


@pytest.mark.parametrize(("norms", "is_read"), [([0.0, 0.5, 0.0], True), ([0.2, 0.5, 0.4], False)])
def test_loss_and_gradient_alone_are_read_where_it_is_zero(tmp_path, norms, is_read):
    path = saved(
        tmp_path / "a.jsonl", lines_of_json({"step": n, "loss": 0.1, "grad_norm": g} for n, g in enumerate(norms))
    )
    if is_read:
        assert read(path).metric("grad_norm").tolist() == norms
    else:
        with pytest.raises(RunError, match="no reward"):
            read(path)


def test_lines_without_step_numbers_may_hold_several_steps(tmp_path):
    rows = [{"loss": 0.1, "reward": 0.5}] * 3
    assert not read(saved(tmp_path / "a.jsonl", lines_of_json(rows))).each_step
    assert read(saved(tmp_path / "b.jsonl", lines_of_json(r | {"step": n} for n, r in enumerate(rows)))).each_step


def cell(**output):
    return {"cell_type": "code", "source": "", "outputs": [output]}


def html(rows):
    body = "".join(f"<tr><td>{n}</td><td>0.1</td><td>{r}</td></tr>" for n, r in rows)
    return f"<table><tr><th>Step</th><th>Training Loss</th><th>reward</th></tr>{body}</table>"


def test_a_stale_table_of_a_notebook_is_no_run(tmp_path):
    pages = [html([(1, 0.5), (2, 0.6)]), html([(1, 0.5), (2, 0.6), (3, 0.7)])]
    cells = [cell(data={"text/html": page}) for page in pages]
    assert len(read(saved(tmp_path / "a.ipynb", json.dumps({"cells": cells}))).steps) == 3


def test_what_two_cells_printed_is_not_glued(tmp_path):
    supervised = "".join(f"{{'loss': 2.{n}, 'grad_norm': 0.5, 'epoch': 0.{n}}}\n" for n in range(5))
    rewards = "".join(f"{{'loss': 0.1, 'reward': 0.{n}, 'epoch': 0.{n}}}\n" for n in range(3))
    cells = [cell(text=supervised), cell(text=rewards), cell(text=rewards)]
    first, second = read_logs(saved(tmp_path / "a.ipynb", json.dumps({"cells": cells})))
    assert first.name.endswith("cell 2") and len(first.steps) == len(second.steps) == 3


def test_rows_of_a_step_under_several_names_are_one():
    rows = Rows()
    for n in (1, 2):
        rows.add({"step": n, "reward": n / 10, "gpu": 9})
        rows.add({"step": n, "grad_norm": n})
    assert rows.table()[["step", "reward", "grad_norm"]].to_dict("list") == {
        "step": [1, 2],
        "reward": [0.1, 0.2],
        "grad_norm": [1, 2],
    }


def test_a_step_that_is_half_printed_is_left_out():
    rows = Rows()
    for n in (1, 2, 3):
        rows.add({"step": n, "reward": n / 10})
        rows.add({"step": n, "grad_norm": n}) if n < 3 else None
    assert rows.table()["step"].tolist() == [1, 2]


def test_steps_that_name_different_metrics_are_all_kept():
    rows = Rows()
    rows.add({"step": 1, "reward": 0.1, "kl": 0})
    rows.add({"step": 2, "reward": 0.2})
    assert rows.table()["step"].tolist() == [1, 2]
