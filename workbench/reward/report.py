"""What a reward pays for: which feature of a completion explains its advantage within groups, and whether that grows."""

import dataclasses
import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..curves.stats import Interval, change_interval
from ..errors import ParameterError
from ..logs.rollouts import load_completions
from ..runs.files import jsonable
from ..runs.secrets import hide_tokens
from ..runs.text import one_line, printable
from .explain import centred, change_of_share, correlation, explain, live_rows, numbered
from .features import Feature, checked, measured, right

LEAST = 20  # groups with differing rewards
LEVEL = 0.01  # of naming anything where nothing is paid, over all features of a report
SHARE = 0.05  # of the differences within groups, among equally right completions; less is not named
SHARE_ALONE = 0.25  # the same where no right answers are known: right completions differ from others in many features
MOST = 20_000  # completions; of more, one group in two or three is judged
_QUARTERS = 4
_TEXT = 160  # characters of a completion that the report shows
_NEAR_ZERO = 0.02  # advantages of a group add up to less


@dataclasses.dataclass(frozen=True)
class Paid:
    """A feature of completions and what it explains of the reward.

    Attributes:
        name: of the feature.
        sign: 1 where more of it is paid, -1 where less is.
        alone: share of the differences within groups that it explains alone, 0..1.
        added: what it adds to all other features, 0..1.
        beyond: what it explains among equally right completions, 0..1; None where no right answers are known.
        p: how often chance explains as much with the best of all features; of `beyond` where that is known.
        through_answers: share of its relation to the reward that right answers explain, 0..1; None as above.
        quarters: correlation with the reward within groups in each quarter of the run, -1..1; NaN where it has no step.
        change: of that correlation from the first to the last half of the run; asked of a named feature alone, else 0.
        change_p: how often chance gives as large a change; 1 as above.
        mean: of the feature in the first and in the last quarter.
        drift: how much the feature's mean changed over the run, with its interval; None below 8 steps and as above.
    """

    name: str
    sign: int
    alone: float
    added: float
    beyond: float | None
    p: float
    through_answers: float | None
    quarters: tuple[float, ...] = ()
    change: float = 0.0
    change_p: float = 1.0
    mean: tuple[float, float] = (0.0, 0.0)
    drift: Interval | None = None

    @property
    def named(self) -> bool:
        """True where it is paid for: chance rarely explains as much, and it is a part that counts."""
        least = SHARE_ALONE if self.beyond is None else SHARE
        return self.p <= LEVEL and self.share >= least

    @property
    def share(self) -> float:
        """What it explains beyond right answers, or alone where none are known."""
        return self.alone if self.beyond is None else self.beyond

    @property
    def what(self) -> str:
        """`length`, or `less length` where less of it is paid."""
        return self.name if self.sign > 0 else f"less {self.name}"

    def over_the_run(self) -> str:
        """Say how the share and the completions change."""
        if any(value != value for value in self.quarters):
            return "the run has too few steps to say whether this changes"
        first, last = (self.quarters[place] ** 2 for place in (0, -1))
        word = "shows no change"
        if self.change_p <= 0.05:
            word = "grows" if self.change * self.sign > 0 else "shrinks"
        says = f"over the run this {word} ({first:.2f} in the first quarter, {last:.2f} in the last)"
        drift = self.drift
        if drift is not None and (drift.low > 0 or drift.high < 0):
            moved = "have more of it" if drift.low > 0 else "have less of it"
            says += f"; completions {moved} ({self.mean[0]:.3g} to {self.mean[1]:.3g})"
        return says


@dataclasses.dataclass(frozen=True)
class Example:
    """One completion of the group that shows a finding best."""

    step: int
    prompt: str
    completion: str
    reward: float
    feature: float
    right: float


@dataclasses.dataclass(frozen=True)
class RewardReport:
    """What a reward pays for; shows itself as text and in notebooks as a table.

    Attributes:
        features: all that vary, those that explain most first.
        groups: whose rewards differ, and `total`, of how many.
        total: see `groups`.
        completions: how many were read.
        answers: share of the differences within groups that right answers explain, None where none are known.
        all: what all features explain together, adjusted for their number.
        left: groups of equally right completions whose rewards differ; None where no right answers are known.
        target: `advantage` as recorded, or `reward`.
        examples: three completions of one group, where a feature is named.
        damage: a sentence for each thing that could not be read or was left out.
    """

    features: tuple[Paid, ...]
    groups: int
    total: int
    completions: int
    answers: float | None
    all: float
    left: int | None
    target: str
    examples: tuple[Example, ...] = ()
    damage: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[Paid, ...]:
        """The features that the reward pays for, apart from right answers; the first explains most."""
        return tuple(paid for paid in self.features if paid.named)

    @property
    def verdict(self) -> str:
        """`pays for ...`, `nothing found` or `cannot tell`."""
        if self.groups < LEAST:
            return "cannot tell"
        if self.named:
            return f"pays for {self.named[0].what}"
        if self.left is not None and self.left < LEAST and (self.answers or 0.0) < 1 - SHARE:
            return "cannot tell"
        return "nothing found"

    @property
    def headline(self) -> str:
        """The finding in one or two sentences."""
        if self.groups < LEAST:
            return (
                f"Cannot tell: rewards differ in {self.groups} group{'s' * (self.groups != 1)} of completions that share "
                f"a step and a prompt, and {LEAST} are needed."
            )
        if self.named:
            return self._says_named(self.named[0])
        if self.answers is None:
            says = f"No feature explains {SHARE_ALONE} of the differences within groups or more{self._largest()}."
            return f"{says} No right answers are known; with `answers` smaller shares can be judged."
        known = f"Right answers explain {self.answers:.2f} of the differences within groups"
        if self.answers >= 1 - SHARE:
            return f"{known}, which leaves next to nothing for another feature."
        if self.verdict == "cannot tell":
            return (
                f"{known}. Cannot tell what explains the rest: it lies in {self.left} groups, and {LEAST} are needed."
            )
        return f"{known}, and no feature explains the rest{self._largest()}."

    def _says_named(self, top: Paid) -> str:
        says = f"The reward pays for {top.what}: it explains {top.alone:.2f} of the differences within groups"
        if self.answers is None:
            says += "; whether right completions explain that is open, because no right answers are known"
        else:
            says += f"; right answers explain {top.through_answers:.2f} of that, and {self.answers:.2f} of the reward"
        says = f"{says}. {top.over_the_run()[0].upper()}{top.over_the_run()[1:]}."
        others = [paid.what for paid in self.named[1:] if paid.added >= SHARE]
        if others:
            says += f" It also pays for {', '.join(others)}."
        return says

    def _largest(self) -> str:
        if not self.features:
            return ""
        top = self.features[0]
        return f" (the largest is {top.what}, {top.share:.2f}, p {top.p:.2g})"

    def table(self):
        """A DataFrame with a row for each feature: shares, p, quarters."""
        import pandas as pd

        rows = []
        for paid in self.features:
            row: dict[str, Any] = {"feature": paid.what, "alone": paid.alone, "added to the others": paid.added}
            if paid.beyond is not None:
                row |= {"beyond right answers": paid.beyond, "through right answers": paid.through_answers}
            row |= {"p": paid.p, "paid for": "yes" if paid.named else ""}
            row["by quarter"] = " ".join("-" if value != value else f"{value:+.2f}" for value in paid.quarters)
            row["mean, first to last quarter"] = f"{paid.mean[0]:.3g} to {paid.mean[1]:.3g}"
            rows.append(row)
        return pd.DataFrame(rows)

    def as_json(self) -> dict:
        """Strict JSON: verdict, headline, damage, and each feature with its numbers."""
        features = [
            {
                "feature": paid.name,
                "sign": paid.sign,
                "alone": paid.alone,
                "added": paid.added,
                "beyond_answers": paid.beyond,
                "through_answers": paid.through_answers,
                "p": paid.p,
                "named": paid.named,
                "quarters": list(paid.quarters),
                "change": paid.change,
                "change_p": paid.change_p,
                "mean": list(paid.mean),
            }
            for paid in self.features
        ]
        about = {
            "verdict": self.verdict,
            "headline": self.headline,
            "groups": self.groups,
            "total": self.total,
            "target": self.target,
            "damage": list(self.damage),
        }
        return jsonable(about | {"completions": self.completions, "answers": self.answers, "features": features})

    def __str__(self) -> str:
        parts = [self.headline, self._basis()]
        if self.groups >= LEAST and self.features:
            table = self.table().drop(columns="mean, first to last quarter")
            parts.append(table.to_string(index=False, float_format="{:.3f}".format))
        for example in self.examples:
            parts.append(self._example_text(example))
        parts += self.damage
        return printable(hide_tokens("\n".join(parts)))

    __repr__ = __str__

    def _basis(self) -> str:
        groups = f"rewards differ in {self.groups} of {self.total} groups"
        says = f"{self.completions} completions; {groups}; explained: the {self.target}"
        if self.groups >= LEAST:
            says += f"; all features together explain {self.all:.2f}"
        return f"{says}. Quarters: correlation with the {self.target} within groups."

    def _example_text(self, example: Example) -> str:
        name = self.named[0].name
        knows = "" if example.right != example.right else f", {'right' if example.right else 'wrong'}"
        head = f"step {example.step}, {self.target} {example.reward:+.3g}, {name} {example.feature:.3g}{knows}"
        return f"  {head}: {one_line(_shortened(example.completion))}"

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{html.escape(self.headline)}</b></p><p>{html.escape(self._basis())}</p>"]
        if self.groups >= LEAST and self.features:
            parts.append(self.table().to_html(index=False, border=0, float_format="{:.3f}".format))
        if self.examples:
            parts.append("<p>Three completions of one group:</p><ul>")
            for example in self.examples:
                parts.append(f"<li><code>{html.escape(self._example_text(example).strip())}</code></li>")
            parts.append("</ul>")
        parts += [f"<p>{html.escape(text)}</p>" for text in self.damage]
        return hide_tokens("".join(parts))


def reward_report(source: Any, *, answers: Any = None, features: Sequence[Feature] = (), seed: int = 0) -> RewardReport:
    """Say what a training's reward pays for, from its recorded completions.

    GRPO learns from differences within groups, the completions of one prompt at one step. The report names the features of a
    completion that explain these differences. Where right answers are known, it compares equally right completions only, so
    that a feature which right completions merely have is not named; completions without a known answer take no part in that.
    It names a feature if chance explains as much in at most 1% of cases, over all features together, and if the feature
    explains 5% or more; without known right answers 25% or more, since right completions differ from others in many features.
    A feature counts by a straight line: a reward for a length in the middle needs a feature of your own. What the workbench
    cannot read from a text, such as the result of a hidden test, may be behind a named feature too, so read the three
    completions.

    Args:
        source: a training's folder or file (the workbench's, TRL's `completions/`, verl's or prime-rl's rollouts), a run, or
            a table with `step`, `prompt`, `completion`, `reward` and, where known, `answer`, `tokens`, `finish_reason`.
        answers: the right answer of each prompt as a dict, or a JSON-lines file of rows with `prompt` and `answer`.
        features: your own, functions under `@feature`, in addition to the built-in ones.
        seed: of the permutations, and of the groups that are judged of very many.

    Raises:
        RunError: nothing there holds completions.
        ParameterError: a column is missing, a feature cannot be used, or the seed is below 0.

    Example:
        >>> texts = ["no", "yes, I think it is so", "it is so", "perhaps"]
        >>> rows = [{"step": s, "prompt": "Is it?", "completion": t, "reward": len(t)} for s in range(30) for t in texts]
        >>> reward_report(rows).verdict
        'pays for length'
    """
    if type(seed) is not int or seed < 0:
        raise ParameterError(f"seed={seed!r}: expected a whole number of at least 0")
    every: Sequence[Feature] = checked(features)
    table, damage = load_completions(source, answers)
    rewards, target = _target(table)
    rng = np.random.default_rng(seed)
    if infinite := int(np.isinf(rewards).sum()):
        damage = [*damage, f"{infinite:,} of {len(table):,} completions have an infinite {target}; left out."]
    keep = np.isfinite(rewards)
    table, rewards = table[keep].reset_index(drop=True), rewards[keep]
    if len(table) > MOST:
        every_nth, groups = -(-len(table) // MOST), _groups(table)
        number = len(np.unique(groups))
        # Drawn: each second group may be those of one kind of prompts, as every step has the same ones.
        keep = np.isin(groups, rng.choice(number, -(-number // every_nth), replace=False))
        damage = [*damage, f"{keep.sum():,} of {len(table):,} completions are judged: 1 group in {every_nth}."]
        table, rewards = table[keep].reset_index(drop=True), rewards[keep]
    rows = table.to_dict("records")
    groups = _groups(table)
    counts: dict[str, Any] = {"completions": len(rows), "target": target, "damage": tuple(damage)}
    counts["total"] = len(np.unique(groups))
    live = live_rows(rewards, groups) if len(rows) else np.zeros(0, bool)
    number = len(np.unique(groups[live]))
    if number < LEAST:
        return RewardReport((), groups=number, answers=None, all=0.0, left=None, **counts)

    exact = right(rows)
    known = ~np.isnan(exact)
    if not known[live].all() and len(np.unique(groups[live & known])) < LEAST:
        rows, exact = [row | {"answer": None} for row in rows], np.full(len(rows), np.nan)
    counts["damage"] += _of_answers(known, exact)
    values = measured(rows, every)
    varies = [k for k in range(len(every)) if len(np.unique(values[live, k][~np.isnan(values[live, k])])) > 1]
    every, values = [every[k] for k in varies], values[:, varies]
    judged = judge(rewards, values, [each.name for each in every], groups, exact, rng)
    order = sorted(range(len(every)), key=lambda k: (not judged.paid[k].named, -judged.paid[k].share))
    steps = table["step"].to_numpy(float)
    paid = tuple(_over_the_run(judged.paid[k], rewards, values[:, k], groups, steps, rng) for k in order)
    examples: tuple[Example, ...] = ()
    if paid and paid[0].named:
        examples = _examples(table, rewards, values[:, order[0]], groups, judged.strata, exact, paid[0].sign)
    counts |= {"answers": judged.answers, "all": judged.all, "left": judged.left, "examples": examples}
    return RewardReport(paid, groups=judged.groups, **counts)


@dataclasses.dataclass(frozen=True)
class Judged:
    """The features of completions, judged: `paid` in their order, and what `RewardReport` says of all of them."""

    paid: tuple[Paid, ...]
    strata: np.ndarray
    groups: int
    answers: float | None
    all: float
    left: int | None


def judge(
    rewards: np.ndarray,
    values: np.ndarray,
    names: Sequence[str],
    groups: np.ndarray,
    exact: np.ndarray,
    rng: np.random.Generator,
    draws: int = 999,
) -> Judged:
    """Judge what N completions were paid for: K features within groups, and among equally right completions of a group.

    Args:
        rewards: (N,), finite.
        values: (N, K), the features; NaN where one is not known.
        names: of the features, K.
        groups: (N,), numbers from 0 on.
        exact: (N,), 1 for a right completion, 0 for a wrong one, NaN where it is not known: these are equally right with none.
        rng: deals rewards again.
        draws: how often.
    """
    within = explain(rewards, values, groups, rng, draws=draws)
    known = ~np.isnan(exact)
    if not known.any():
        paid = tuple(
            Paid(
                name,
                int(within.sign[k]),
                float(within.alone[k]),
                float(within.added[k]),
                None,
                float(within.p[k]),
                None,
            )
            for k, name in enumerate(names)
        )
        return Judged(paid, groups, within.groups, None, within.all, None)
    strata = numbered(groups, np.where(known, exact, -1.0))
    # Of completions without a known answer nobody can say which are equally right.
    judged = rewards[known], values[known], groups[known], numbered(strata[known])
    y = centred(judged[0], judged[2])
    beyond = explain(judged[0], judged[1], judged[3], rng, draws=draws, differences=float(y @ y))
    through = _through(*judged)
    enough = beyond.groups >= LEAST
    signs = beyond.sign if enough else within.sign
    chances = beyond.p if enough else np.ones(len(names))
    paid = tuple(
        Paid(
            name,
            int(signs[k]),
            alone=float(within.alone[k]),
            added=float(within.added[k]),
            beyond=float(beyond.alone[k]),
            p=float(chances[k]),
            through_answers=float(through[k]),
        )
        for k, name in enumerate(names)
    )
    answers = correlation(judged[0], exact[known], judged[2], np.ones(len(y), bool)) ** 2
    return Judged(paid, strata, within.groups, answers, within.all, beyond.groups)


def _of_answers(known: np.ndarray, exact: np.ndarray) -> tuple[str, ...]:
    """Sentences for a report whose right answers are not all known, or in which no completion reads as right; (N,) each."""
    judged, says = ~np.isnan(exact), []
    if known.any() and not known.all():
        others = "what right answers explain is judged on the others"
        how = others if judged.any() else "too few groups have one, so all are judged as if none had"
        says.append(f"{(~known).sum():,} of {len(exact):,} completions have no known answer: {how}.")
    if judged.any() and not (exact == 1).any():
        unread = "If some are right in a form that is not read, what they have may be named"
        says.append(f"None of the {judged.sum():,} completions with a known answer reads as right. {unread}.")
    return tuple(says)


def _target(table) -> tuple[np.ndarray, str]:
    """Return what is explained: advantages if those of each prompt and step add up to 0, as GRPO's do; else rewards."""
    if "advantage" in table:
        advantage = _numbers(table, "advantage")
        known = np.isfinite(advantage)
        if known.any() and np.any(advantage[known]):
            groups = _groups(table)[known]
            sums = np.abs(np.bincount(groups, advantage[known]))
            if (sums <= _NEAR_ZERO * np.maximum(np.bincount(groups), 1)).mean() > 0.99:
                return advantage, "advantage"
    if "reward" not in table:
        return np.full(len(table), np.nan), "reward"
    return _numbers(table, "reward"), "reward"


def _numbers(table, name: str) -> np.ndarray:
    values = table[name]
    try:
        return values.to_numpy(float)
    except (TypeError, ValueError):
        if name == "advantage" and "reward" in table:  # it may be a list, of each token; the reward is there
            return np.full(len(table), np.nan)
        odd = next(value for value in values if not _is_number(value))
        says = f"`{name}` has {one_line(repr(odd))[:80]}; expected a number for each completion"
        raise ParameterError(says) from None


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return value is None
    return True


def _groups(table) -> np.ndarray:
    """The group of each completion: those of one step and one prompt, or of the group that the record names."""
    if not len(table):
        return np.zeros(0, int)
    # Of objects: an array of texts gives each row the room of the longest.
    of_prompt = numbered(table["step"].to_numpy(float), table["prompt"].to_numpy(object))
    if "group" not in table:
        return of_prompt
    named = numbered(of_prompt, np.array([*map(str, table["group"])], object))
    of_one_each = np.bincount(named).max() == 1  # an id of the completion, not of its group
    return of_prompt if of_one_each else named


def _through(rewards, values, groups, strata) -> np.ndarray:
    """Share of each feature's covariance with the reward within groups that lies between right and wrong completions."""
    y = centred(rewards, groups)
    inner = centred(rewards, strata)
    whole = centred(values, groups).T @ y
    rest = centred(values, strata).T @ inner
    related = np.abs(whole) > 1e-12 * np.sqrt(np.nansum(values**2, axis=0) * (y @ y))
    return np.where(related, np.clip(1 - rest / np.where(related, whole, 1.0), 0, 1), 0.0)


def _over_the_run(paid: Paid, rewards, feature, groups, steps, rng) -> Paid:
    """The feature with its course: correlations by quarter and the change of its mean."""
    live = live_rows(rewards, groups)
    edges = np.quantile(steps[live], np.linspace(0, 1, _QUARTERS + 1)[1:-1])
    quarter = np.searchsorted(edges, steps, side="right")
    parts = [live & (quarter == k) for k in range(_QUARTERS)]
    courses = tuple(correlation(rewards, feature, groups, rows) if rows.any() else float("nan") for rows in parts)
    change, change_p = change_of_share(rewards, feature, groups, steps, rng) if paid.named else (0.0, 1.0)
    known = ~np.isnan(feature)
    order = np.unique(steps[known], return_inverse=True)[1]
    means = np.bincount(order, feature[known]) / np.bincount(order)
    part = max(1, len(means) // _QUARTERS)
    drift = change_interval(means) if paid.named and len(means) >= 8 and np.ptp(means) > 0 else None
    ends = (float(means[:part].mean()), float(means[-part:].mean()))
    return dataclasses.replace(paid, quarters=courses, change=change, change_p=change_p, mean=ends, drift=drift)


def _examples(table, rewards, feature, groups, strata, exact, sign: int) -> tuple[Example, ...]:
    """Three completions of the group in which the feature and the reward go together most, by reward from the highest."""
    filled = sign * np.where(np.isnan(feature), 0.0, feature)
    spread = filled.std() or 1.0
    scores = np.bincount(groups, centred(filled / spread, strata) * centred(rewards, strata))
    texts = table["completion"].to_numpy(object)
    best = 0
    for best in np.argsort(-scores, kind="stable")[:50]:
        if len(np.unique(texts[groups == best])) >= 3:
            break
    rows = np.flatnonzero(groups == best)
    rows = rows[np.unique(texts[rows], return_index=True)[1]]
    rows = rows[np.lexsort((-filled[rows], -rewards[rows]))]
    chosen = dict.fromkeys([0, len(rows) // 2, len(rows) - 1])
    examples = []
    for row in rows[list(chosen)]:
        line = table.iloc[row]
        numbers = (float(rewards[row]), float(feature[row]), float(exact[row]))
        examples.append(Example(int(line["step"]), line["prompt"], line["completion"], *numbers))
    return tuple(examples)


def _shortened(text: str) -> str:
    if len(text) <= _TEXT:
        return repr(text)
    half = _TEXT // 2
    return f"{text[:half]!r} ... {text[-half:]!r}"
