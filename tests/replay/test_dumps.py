"""The dumps of other frameworks: written by their own code (`python -m repros.frameworks.dumps`), read, and judged."""

import json
import os
import pickle
import shutil
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from workbench import replay_step
from workbench.cli import main
from workbench.errors import RunError
from workbench.replay.dump_stages import NO_BASELINE, compared_with_formulas, formulas
from workbench.replay.dumps import load_dump
from workbench.replay.torch_file import load_torch_file

DUMPS = Path(__file__).with_name("dumps")
SLIME = DUMPS / "slime/train_data/3.pt"
TOKENS = DUMPS / "prime-rl/token_exports/step_3/rank_0.jsonl"
TRACES = DUMPS / "prime-rl/rollouts/step_3/train/effective/traces.jsonl"
NEMO = DUMPS / "NeMo-RL/train_data_step3.jsonl"
AREAL = DUMPS / "AReaL/step_000003.pt"
FILES = sorted(path for path in DUMPS.rglob("*") if path.is_file())
# File -> its stages that can be told; all of them are right.
JUDGED = {
    SLIME: "ends turns mask rewards advantages batches mismatch",
    DUMPS / "slime/rollout_data/3.pt": "mask",
    TOKENS: "mask mismatch ratios correction",
    TRACES: "mask advantages",
    NEMO: "mask advantages mismatch",
    DUMPS / "verl/3.jsonl": "",
    AREAL: "mask",
    DUMPS / "AReaL/3/0.jsonl": "",
}


def test_every_stored_dump_is_listed():
    assert sorted(JUDGED) == FILES


@pytest.mark.parametrize("path", JUDGED, ids=lambda path: str(path.relative_to(DUMPS)))
def test_a_right_dump_shows_what_it_holds_and_no_more(path):
    report = replay_step(path)
    told = [stage.name for stage in report.stages if stage.verdict in ("same", "rounding")]
    assert report.first is None
    assert told == JUDGED[path].split()
    for stage in report.undecided:
        assert "the dump" in stage.cause, stage


def test_a_dump_has_the_numbers_that_its_writer_got():
    dump = load_dump(SLIME)
    assert (dump.framework, dump.number, len(dump.rows)) == ("slime", 3, 8)
    assert [row.reward for row in dump.rows] == [1.0, 0.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.0]
    assert [row.truncated for row in dump.rows] == [False, False, True, False, False, True, False, False]
    assert dump.rows[2].mask.tolist() == [1, 1, 0, 1, 1, 1]
    traces = load_dump(TRACES)
    for row, other in zip(dump.rows, traces.rows, strict=True):
        assert row.reward == other.reward
        assert np.allclose(row.sampled_logps, other.sampled_logps[-len(row.sampled_logps) :])


def changed_slime(folder, change):
    """The dump of slime with another training file."""
    shutil.copytree(SLIME.parent.parent, folder, dirs_exist_ok=True)
    content = torch.load(SLIME, weights_only=True)
    change(content)
    torch.save(content, folder / "train_data/3.pt")
    return folder / "train_data/3.pt"


def rolled(content):
    content["raw_reward"] = content["raw_reward"][1:] + content["raw_reward"][:1]


def tool_token(content):
    content["samples"][2]["loss_masks"][2] = 1


def negated(content):
    for sample in content["samples"]:
        sample["advantages"] = -sample["advantages"]


def one_group(content):
    for sample in content["samples"][:4]:
        sample["advantages"] = sample["advantages"] + 0.3


def shifted(content):
    for sample in content["samples"]:
        sample["rollout_log_probs"] = torch.roll(sample["rollout_log_probs"], 1)


def truncated(content):
    content["samples"][0]["truncated"] = 1


def encoded_again(content):
    content["samples"][1]["tokens"][-1] += 1


def twice(content):
    content["dp_shards"][1]["micro_batch_indices"] = [[0, 1], [1, 3]]


def divisor(content):
    content["samples"][5]["rollout_mask_sums"] = torch.tensor(12.0)


def nan_advantage(content):
    content["samples"][1]["advantages"][:] = float("nan")


def nan_logp(content):
    content["samples"][1]["log_probs"][0] = float("nan")


def impossible_token(content):
    content["samples"][4]["rollout_log_probs"][0] = -float("inf")


FAULTS = [
    (nan_advantage, "advantages", "an advantage is not finite"),
    (nan_logp, "mismatch", "a token in the loss has no finite log-prob"),
    (impossible_token, "mismatch", "a token in the loss has no finite log-prob"),
    (rolled, "rewards", "another reward than the rollout wrote"),
    (tool_token, "mask", "another mask than the rollout wrote"),
    (negated, "advantages", "the negative of: reward minus the mean of the group"),
    (one_group, "advantages", "1 of 2 groups are reward minus the mean of the group"),
    (shifted, "mismatch", "one token later"),
    (truncated, "ends", "1 of 8 rows count as truncated and ended"),
    (encoded_again, "turns", "other tokens than the rollout wrote"),
    (twice, "batches", "process 1: sample 1 is in 2 micro-batches"),
    (divisor, "loss", "is 12 where the masks add up to 6"),
]


@pytest.mark.parametrize("change, stage, cause", FAULTS, ids=[change.__name__ for change, _, _ in FAULTS])
def test_a_fault_in_a_dump_of_slime_is_found(change, stage, cause, tmp_path):
    report = replay_step(changed_slime(tmp_path / "details", change))
    assert report[stage].verdict == "different"
    assert cause in report[stage].cause


def test_numbers_in_half_precision_are_no_fault(tmp_path):
    def halved(content):
        for sample in content["samples"]:
            for name in ("advantages", "log_probs", "rollout_log_probs"):
                sample[name] = sample[name].bfloat16()

    report = replay_step(changed_slime(tmp_path / "details", halved))
    assert report.first is None and report["advantages"].verdict == "same"


def changed_lines(source, target, change):
    records = [json.loads(line) for line in source.read_text().splitlines()]
    for number, record in enumerate(records):
        change(number, record)
    target.write_text("".join(json.dumps(record) + "\n" for record in records))
    return target


def padding_counts(number, record):
    record["token_loss_mask"][0][-1] = 1


def left_out(number, record):
    record["sample_loss_mask"] = [0.0]


def prompt_in_the_loss(number, record):
    record["token_loss_mask"][0][record["token_loss_mask"][0].index(1) - 1] = 1
    record["prev_logprobs"][0][record["token_loss_mask"][0].index(1)] = -2.5


def no_sampler(number, record):
    record["inference_logprobs"] = [None] * len(record["inference_logprobs"])


def no_advantages(number, record):
    if number == 0:
        record["traces"][0]["nodes"][1]["advantages"] = None


def short_ratio(number, record):
    record["importance_ratio"] = record["importance_ratio"][:-1]


def other_ratio(number, record):
    record["importance_ratio"] = [ratio * 1.01 for ratio in record["importance_ratio"]]


def masked_within(number, record):
    if number == 0:
        record["is_masked"] = record["loss_mask"]


def batch_baseline(number, record):
    for node in record["traces"][0]["nodes"]:
        node["advantages"] = [
            record["traces"][0]["rewards"]["right"]["score"] - 0.4375 for _ in node.get("logprobs", [])
        ]


LINE_FAULTS = [
    (NEMO, padding_counts, "mask", "different", "counts padding"),
    (TOKENS, other_ratio, "ratios", "different", "not those of the log-probs"),
    (TOKENS, masked_within, "correction", "different", "at positive advantage"),
    (TRACES, batch_baseline, "advantages", "cannot tell", "published formulas"),
    (NEMO, left_out, "advantages", "cannot tell", "no token in the loss"),
    (
        NEMO,
        prompt_in_the_loss,
        "mask",
        "cannot tell",
        "8 rows have tokens in the loss to which the sampler gave no log-prob",
    ),
    (TOKENS, no_sampler, "mask", "cannot tell", "8 rows have tokens in the loss to which the sampler gave no log-prob"),
    (TRACES, no_advantages, "advantages", "cannot tell", "no advantages of some completions"),
]


@pytest.mark.parametrize("source, change, stage, verdict, cause", LINE_FAULTS)
def test_a_fault_in_a_dump_of_lines_is_found(source, change, stage, verdict, cause, tmp_path):
    report = replay_step(changed_lines(source, tmp_path / "step_3.jsonl", change))
    assert report[stage].verdict == verdict
    assert cause in report[stage].cause


def test_a_part_of_a_group_is_no_fault(tmp_path):
    lines = NEMO.read_text().splitlines(keepends=True)
    path = tmp_path / "train_data_step3.jsonl"
    path.write_text("".join(lines[:7]))
    assert replay_step(path)["advantages"].verdict == "cannot tell"


def test_a_row_that_the_loss_leaves_out_is_one_of_its_group(tmp_path):
    path = changed_lines(NEMO, tmp_path / "step_3.jsonl", lambda i, record: left_out(i, record) if i == 2 else None)
    assert replay_step(path)["advantages"].verdict == "same"


def test_numbers_for_other_tokens_are_refused(tmp_path):
    with pytest.raises(RunError, match="6 numbers in importance_ratio for 7 tokens"):
        replay_step(changed_lines(TOKENS, tmp_path / "step_3.jsonl", short_ratio))


def test_rows_of_areal_may_be_padded_on_the_left(tmp_path):
    parts = torch.load(AREAL, weights_only=True)
    for part in parts:
        lengths = part["attention_mask"].sum(1).tolist()
        for name in ("input_ids", "attention_mask", "loss_mask", "logprobs"):
            rows = zip(part[name], lengths, strict=True)
            part[name] = torch.stack([torch.roll(row, len(row) - length, 0) for row, length in rows])
    torch.save(parts, tmp_path / "step_000003.pt")
    for row, other in zip(load_dump(tmp_path / "step_000003.pt").rows, load_dump(AREAL).rows, strict=True):
        assert (row.group, row.completion) == (other.group, other.completion)
    assert replay_step(tmp_path / "step_000003.pt")["mask"].verdict == "same"


def test_equal_completions_with_other_scores_are_named(tmp_path):
    row = {"input": "1 + 1", "output": "2", "gts": "2", "step": 4}
    path = tmp_path / "4.jsonl"
    path.write_text("".join(json.dumps(row | {"score": score}) + "\n" for score in (1.0, 0.0)))
    stage = replay_step(path)["rewards"]
    assert stage.verdict == "cannot tell"
    assert "equal completions of one group have different rewards" in stage.cause


@pytest.mark.parametrize("name", formulas())
def test_each_published_formula_is_recognized(name):
    rng = np.random.default_rng(3)
    rewards = rng.uniform(0.1, 1.0, 12)
    groups = [range(start, start + 4) for start in (0, 4, 8)]
    used = np.concatenate([formulas()[name](rewards[list(rows)]) for rows in groups])
    stage = compared_with_formulas(rewards, used, groups)
    if name == NO_BASELINE:  # a fault of GRPO and RLOO, and REINFORCE's own formula
        assert (stage.verdict, stage.cause[:33]) == ("cannot tell", "the reward: no baseline is taken ")
        assert compared_with_formulas(rewards, used, [[row] for row in range(12)]).verdict == "same"
        return
    assert stage.verdict == "same"
    assert stage.cause.removesuffix(", plus 0.0001)").rstrip(")") in name


def judged_in_float32(rewards, small=1e-6, sign=1):
    """The verdict on advantages of groups, (P, G), as torch computes them."""
    centred = rewards - rewards.mean(1, keepdim=True)
    advantages = sign * (centred / (rewards.std(1, keepdim=True) + small) if small else centred)
    groups = torch.arange(rewards.numel()).view(rewards.shape).tolist()
    return compared_with_formulas(rewards.double().flatten().numpy(), advantages.double().flatten().numpy(), groups)


def test_small_rewards_hide_no_sign():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]]) * 5e-4
    assert judged_in_float32(rewards, small=0).verdict == "same"
    assert judged_in_float32(rewards, small=0, sign=-1).cause == "the negative of: reward minus the mean of the group"


def test_what_float32_makes_of_rewards_is_no_fault():
    equal = torch.tensor([[1.0, 0, 0, 1, 0, 0, 0, 1], [0.7] * 8, [0.0, 0, 0, 1, 0, 0, 1, 1]])
    stage = judged_in_float32(equal)
    assert (stage.verdict, stage.largest > 0.01) == ("rounding", True)
    assert "in groups of equal rewards" in stage.cause
    far = torch.rand((6, 8), generator=torch.Generator().manual_seed(0))
    assert judged_in_float32(far + 1e4).verdict == "same"
    assert "too few digits" in judged_in_float32(far * 1e-3 + 1e4).cause


def test_neighbours_rewards_are_named():
    rewards = np.array([1.0, 0.0, 0.3, 2.0, 0.0, 1.0])
    moved = np.roll(rewards, 1)
    used = np.concatenate([moved[:3] - moved[:3].mean(), moved[3:] - moved[3:].mean()])
    stage = compared_with_formulas(rewards, used, [range(3), range(3, 6)])
    assert (stage.verdict, stage.cause[:41]) == ("different", "each row has that of the row before it: r")


def test_a_prompt_twice_in_a_batch_is_no_fault():
    rewards = np.random.default_rng(0).permuted(np.tile([0.0, 0.0, 1.0, 1.0], (7, 1)), axis=1)
    rewards[0, 0] = 5.0  # so that the two groups of one prompt have different means
    used = ((rewards - rewards.mean(1, keepdims=True)) / rewards.std(1, ddof=1, keepdims=True)).ravel()
    groups = [range(8), *(range(start, start + 4) for start in range(8, 28, 4))]
    stage = compared_with_formulas(rewards.ravel(), used, groups)
    assert (stage.verdict, "a prompt that stands in the batch twice" in stage.cause) == ("cannot tell", True)


# --- files of torch -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_are_read_as_torch_reads_them(protocol, tmp_path):
    value = {
        "grid": torch.arange(6.0).view(2, 3).t(),
        "half": torch.tensor([1.5, -2.0]).bfloat16(),
        "part": torch.arange(9)[3:5],
    }
    value |= {"texts": ["é", "x" * 300], "numbers": (1, -70000, 2**70, 0.5, True, None), "empty": torch.zeros(0, 3)}
    value |= {"nested": OrderedDict(a=[[1, 2], [3]]), "shape": torch.ones(2, 3).shape, "one": torch.tensor(7), 3: {}}
    torch.save(value, tmp_path / "a.pt", pickle_protocol=protocol)
    torch.save(value, tmp_path / "b.pt")
    expected = torch.load(tmp_path / "b.pt", weights_only=True)  # of protocol 2, the only one that it reads
    read = load_torch_file(tmp_path / "a.pt")
    assert list(read) == list(expected)
    for name, other in expected.items():
        if isinstance(other, torch.Tensor):
            assert read[name].shape == tuple(other.shape)
            assert np.array_equal(read[name], other.float() if other.dtype == torch.bfloat16 else other)
        else:
            assert read[name] == other


class Executed:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def with_pickle(path, pickled, storage=b"\0" * 8):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/data/0", storage)
    return path


def test_a_file_that_executes_something_is_refused_unexecuted(tmp_path):
    for call in ((os.mkdir, str(tmp_path / "made")), (eval, "1 + 1"), (getattr, dict, "fromkeys"), (Path, "x")):
        torch.save({"samples": [Executed(*call)]}, tmp_path / "3.pt")
        with pytest.raises(RunError, match=r"only plain values and tensors are read\. It is not executed"):
            replay_step(tmp_path / "3.pt")
    assert not (tmp_path / "made").exists()


def tensor_of(size, stride, offset=0):
    """A pickle with a tensor of torch that takes what it likes of two numbers."""
    torch_file = pickle.dumps((size, stride), 2)[2:-1]
    start = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
    start += b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQK" + bytes([offset])
    return start + torch_file + b"\x89tR."


HOSTILE = {
    "an object": pickle.dumps(Path("x"), 4),
    "a function that is only named": b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.",
    "a name made of texts": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.",
    "an instance": b"(ios\nsystem\n.",
    "no end": b"\x80\x02]",
    "nothing": b"",
    "a memo far away": b"\x80\x02]r\xff\xff\xff\xffj\xfe\xff\xff\xff.",
    "a text of four gigabytes": b"\x80\x02X\xff\xff\xff\xff",
    "items without a list": b"\x80\x02e.",
    "a dictionary of lists": b"\x80\x02}]]s.",
    "a tensor beyond its numbers": tensor_of((3,), (1,)),
    "a tensor of a billion numbers": tensor_of((1_000_000_000,), (0,)),
    "a tensor before its numbers": tensor_of((2,), (-1,)),
    "a tensor behind its numbers": tensor_of((1,), (1,), offset=9),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused(name, tmp_path):
    with pytest.raises(RunError, match=r"3\.pt: "):
        replay_step(with_pickle(tmp_path / "3.pt", HOSTILE[name]))


def test_a_file_that_is_no_zip_of_torch_is_refused(tmp_path):
    path = tmp_path / "3.pt"
    path.write_bytes(pickle.dumps([1]))
    with pytest.raises(RunError, match="no zip file"):
        replay_step(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 10_000_000)
    with pytest.raises(RunError, match="compressed"):
        replay_step(path)
    path.write_bytes(SLIME.read_bytes()[:-200])
    with pytest.raises(RunError, match="no zip file"):
        replay_step(path)
    (tmp_path / "link.pt").symlink_to(SLIME)
    with pytest.raises(RunError, match="a link"):
        replay_step(tmp_path / "link.pt")
    with pytest.raises(RunError, match="no such file"):
        replay_step(tmp_path / "none.pt")


BAD_LINES = {
    "no record": ("", "no record"),
    "another table": ('{"epoch": 1, "loss": 2}\n', "its first line has epoch, loss; expected train_data"),
    "no list": ('{"traces": 1}\n', "a dump without what its writer puts there"),
    "another mask": (
        '{"traces": [{"agent": {}, "nodes": [{"token_ids": [1], "mask": [true], "logprobs": []}]}]}\n',
        "0 logprobs for 1 sampled tokens",
    ),
    "deep": ('{"traces": ' + "[" * 100_000 + "]" * 100_000 + "}\n", "3.jsonl"),
    "no JSON": ("import os\n", "3.jsonl"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_lines_that_are_no_dump_are_refused(name, tmp_path):
    text, says = BAD_LINES[name]
    path = tmp_path / "3.jsonl"
    path.write_text(text)
    with pytest.raises(RunError, match=says):
        replay_step(path)


def test_a_dump_without_a_field_says_so(tmp_path):
    content = torch.load(SLIME, weights_only=True)
    samples = [{name: sample[name] for name in ("tokens", "response_lengths")} for sample in content["samples"]]
    torch.save({"format_version": 2, "rollout_id": 3, "samples": samples, "dp_shards": []}, tmp_path / "3.pt")
    assert {stage.verdict for stage in replay_step(tmp_path / "3.pt").stages} == {"cannot tell"}


def test_the_command_names_framework_and_first_fault(tmp_path, capsys):
    assert main(["replay", str(SLIME)]) == 0
    assert capsys.readouterr().out.startswith("step 3, 8 completions, dumped by slime: ")
    assert main(["replay", str(changed_slime(tmp_path, rolled)), "--json"]) == 1
    stages = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"rewards", "advantages"} <= {stage["name"] for stage in stages if stage["verdict"] == "different"}
    assert main(["replay", str(SLIME), "--tokens", "0"]) == 2
    assert "a dump of another framework" in capsys.readouterr().err
    assert main(["replay", str(SLIME), "--step", "4"]) == 2


NATS = np.random.default_rng(5).exponential(0.5, (16, 60))  # of 16 rows of 60 tokens, as the trainer scores them


def nemo(folder, change):
    """NeMo-RL's dump of 16 rows, whose sampler's numbers `change` makes of the trainer's and of noise."""
    noise = np.random.default_rng(6).normal(0, 0.01, NATS.shape)
    sampled = change(-NATS.copy(), noise * NATS)
    lines = []
    for i, (own, other) in enumerate(zip(-NATS, sampled, strict=True)):
        line = {"token_ids": [900 + i // 8] * 4 + [*range(60)], "input_lengths": [64], "sample_loss_mask": [1.0]}
        line |= {"token_loss_mask": [0] * 4 + [1] * 60, "rewards": [i % 2], "advantages": [0.0] * 64}
        line |= {"prev_logprobs": [0.0] * 4 + own.tolist(), "generation_logprobs": [0.0] * 4 + other.tolist()}
        lines.append(json.dumps(line))
    path = folder / "train_data_step3.jsonl"
    path.write_text("\n".join(lines))
    return replay_step(path)["mismatch"]


def another_row(own, noise):
    own[5] = own[6]
    return own + noise


def one_row_shifted(own, noise):
    own[5] = np.roll(own[5], 1)
    return own + noise


def one_row_older(own, noise):
    own[5] -= 2
    return own + noise


def first_token(own, noise):
    own[:, 0] = -9
    return own + noise


SAMPLERS = [
    (lambda own, noise: own, "same", "0 nats a token"),
    (lambda own, noise: own + noise, "rounding", "nats a token between trainer and sampler"),
    (lambda own, noise: own + 4 * noise, "rounding", "nats a token between trainer and sampler"),
    (another_row, "different", "row 5 has those of row 6"),
    (one_row_shifted, "different", "in row 5 the sampler's stand one token later"),
    (one_row_older, "cannot tell", "2 in 1 rows"),
    (first_token, "cannot tell", "for the first token of each row"),
    (
        lambda own, noise: own * 0.95 + noise,
        "cannot tell",
        "is 5% of a log-prob, as if one of the two divided by another",
    ),
]


@pytest.mark.parametrize("change, verdict, says", SAMPLERS)
def test_a_sampler_is_compared_row_by_row(change, verdict, says, tmp_path):
    stage = nemo(tmp_path, change)
    assert stage.verdict == verdict and says in stage.cause, stage


def areal(folder, counted, sure=0):
    """AReaL's dump of 16 rows of 5 + 9 tokens, of which a tool wrote three and the places `counted` are in the loss, too."""
    ids = torch.arange(16 * 14).view(16, 14)
    logps = -torch.rand(16, 14) - 0.1
    logps[:, :5] = logps[:, 8:11] = 0.0
    logps[:, 11 : 11 + sure] = 0.0
    mask = (logps != 0).int()
    mask[:, 11:] = 1
    mask[:, counted] = 1
    whole = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "loss_mask": mask, "logprobs": logps}
    torch.save([whole | {"rewards": torch.rand(16)}], folder / "step_000003.pt")
    return replay_step(folder / "step_000003.pt")["mask"]


COUNTED = [
    ([], 0, "same", "no other token has a log-prob"),
    ([], 2, "same", "no other token has a log-prob"),  # two sure tokens in a row
    ([8, 9, 10], 0, "cannot tell", "those of a prompt or a tool"),
    ([*range(5)], 0, "different", "their very first token in the loss"),
    ([4], 0, "cannot tell", "is it the last token of a prompt?"),
]


@pytest.mark.parametrize("counted, sure, verdict, says", COUNTED)
def test_tokens_that_nobody_sampled_are_seen_in_a_mask(counted, sure, verdict, says, tmp_path):
    mask = areal(tmp_path, counted, sure)
    assert mask.verdict == verdict and says in mask.cause, mask
