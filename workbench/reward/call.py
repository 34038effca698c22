"""Call anybody's reward function: in TRL's convention, in verl's, or with a completion and an answer."""

import asyncio
import contextlib
import copy
import functools
import inspect
import math
import signal
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import ParameterError
from ..runs.own_code import load_module

TRL, VERL, PAIR = "TRL's convention", "verl's convention", "a completion and an answer"
VERL_BATCH = "verl's convention of batches"
_COMPLETION = ("completion", "response", "prediction", "output", "text", "model_output", "pred", "generated")
_ANSWER = ("answer", "ground_truth", "reference", "target", "label", "solution", "gold", "gt", "expected")
_OF_TRL = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
_STATE = {
    "global_step": 1,
    "max_steps": 1000,
    "epoch": 0.0,
    "num_train_epochs": 1,
    "log_history": [],
    "is_world_process_zero": True,
}


def is_async(function: Any) -> bool:
    """Return True where a call gives a coroutine."""
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004  # inherited too
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def name_of(function: Any) -> str:
    """The name of a function, of what a partial calls, or of an object's class."""
    while isinstance(function, functools.partial) and not hasattr(function, "__name__"):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


class NoAnswer(BaseException):
    """A function had not returned when its time was over; no Exception, as many rewards answer 0.0 after any of these."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End what runs in the block after so many seconds, such as a regular expression that goes through all ways to match.

    There is no limit outside of the main thread, without SIGALRM (Windows), or while somebody else's alarm is set.

    Raises:
        NoAnswer: the time was over, also if the block caught what was raised in it.
    """
    alarm = getattr(signal, "SIGALRM", None)
    if (
        alarm is None
        or threading.current_thread() is not threading.main_thread()
        or any(signal.getitimer(signal.ITIMER_REAL))
    ):
        yield
        return
    over = False

    def end(*_: Any) -> None:
        nonlocal over
        over = True
        raise NoAnswer

    before = signal.signal(alarm, end)
    # Again after as long: a block that catches what is raised here may go on with the next completion.
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(alarm, before)
    if over:
        raise NoAnswer


def text_of(completion: Any) -> str:
    """The text of a completion, of a conversation that of its last message.

    Example:
        >>> text_of("4"), text_of([{"role": "assistant", "content": "4"}])
        ('4', '4')
    """
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if len(completion) else ""
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content or ""


def load_function(place: str) -> Callable[..., Any]:
    """Import `module:function` or `file.py:function`; the module is executed.

    Raises:
        ParameterError: no such module, file or function; or what it names cannot be called.
    """
    expected = "expected MODULE:FUNCTION or FILE.py:FUNCTION, such as rewards.py:reward_exact"
    source, separator, name = place.rpartition(":")
    if not separator or not source or not name:
        raise ParameterError(f"{place!r}: {expected}")
    try:
        module = load_module(source, expected)
    except (Exception, SystemExit) as error:
        if isinstance(error, ParameterError):
            raise
        raise ParameterError(f"{source}: {type(error).__name__}: {error}; {expected}") from error
    function = getattr(module, name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ParameterError(f"{source} has no function {name!r}; it has {', '.join(names) or 'none'}")
    return function


class Asked:
    """A reward function with the convention in which it is called.

    `refused` names what TRL passes and the function does not take; it is then called without these.
    """

    def __init__(self, function: Callable[..., Any], columns: Sequence[str], answer: str | None):
        self.function = function
        self.name = name_of(function)
        self.answer = answer
        self.refused: list[str] = []
        self.own: list[str] = []
        self.others: list[str] = []  # columns of the row that it takes too
        if inspect.isclass(function):
            raise ParameterError(
                f"{self.name} is a class; expected a function, or an object such as `mine = {self.name}()`"
            )
        parameters: Mapping[str, inspect.Parameter] = {}
        with contextlib.suppress(TypeError, ValueError):  # of some functions written in C there is none
            parameters = inspect.signature(function).parameters
        anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        of_one = not {"completions", "completion_ids", "prompts"} & set(parameters) and any(
            name in parameters and name not in columns for name in _COMPLETION
        )
        if "solution_str" in parameters:
            self.convention = VERL
        elif "solution_strs" in parameters:
            self.convention = VERL_BATCH
        elif "completions" in parameters or (anything and not of_one) or not parameters:
            self.convention = TRL
            if parameters and not anything:
                passed = [*_OF_TRL, *columns]
                self.refused = [name for name in passed if name not in parameters]
        else:
            self.convention = PAIR
            completion = next((name for name in _COMPLETION if name in parameters), None)
            wanted = next((name for name in _ANSWER if name in parameters and name != completion), None)
            self.own = [completion, wanted] if completion and wanted else []
            asked = [p.name for p in parameters.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
            others = [name for name in asked if name not in (completion, wanted)]
            if completion and (others or anything) and all(name == "prompt" or name in columns for name in others):
                every = [name for name in ("prompt", *columns) if name not in (completion, wanted)]
                self.own, self.others = [completion, *filter(None, [wanted])], every if anything else others

    def __call__(self, completions: Sequence[Any], rows: Sequence[Mapping[str, Any]]) -> list:
        """Ask for the rewards of completions, one row of the data set each; what the function answers is returned as it is.

        Raises:
            ParameterError: the answer is no list with one value for each completion.
        """
        if self.convention == TRL:
            names = {name: None for row in rows for name in row}
            columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names if name != "prompt"}
            passed: dict[str, Any] = {"prompts": [row["prompt"] for row in rows], "completions": completions}
            state = types.SimpleNamespace(**copy.deepcopy(_STATE))
            passed |= {"completion_ids": [list(text_of(c).encode()) for c in completions], "trainer_state": state}
            passed |= {"log_extra": _ignore, "log_metric": _ignore, **columns}
            answer = self._wait(self.function(**{k: v for k, v in passed.items() if k not in self.refused}))
            return _listed(answer, len(completions))
        if self.convention == VERL_BATCH:
            each = [self._of_verl(completion, row) for completion, row in zip(completions, rows, strict=True)]
            passed = {f"{name}s": [row[name] for row in each] for name in each[0]}
            return [_score(value) for value in _listed(self._wait(self.function(**passed)), len(completions))]
        return [self._one(completion, row) for completion, row in zip(completions, rows, strict=True)]

    def _answer_of(self, row: Mapping[str, Any]) -> Any:
        answer = row.get(self.answer) if self.answer else None
        # verl's data sets have `reward_model={"ground_truth": ...}`
        return answer.get("ground_truth") if isinstance(answer, Mapping) and "ground_truth" in answer else answer

    def _of_verl(self, completion: Any, row: Mapping[str, Any]) -> dict[str, Any]:
        source, extra = row.get("data_source", "unknown"), row.get("extra_info", {})
        return {
            "data_source": source,
            "solution_str": completion,
            "ground_truth": self._answer_of(row),
            "extra_info": extra,
        }

    def _one(self, completion: Any, row: Mapping[str, Any]) -> Any:
        if self.convention == VERL:
            parameters = inspect.signature(self.function).parameters
            verl = {k: v for k, v in self._of_verl(completion, row).items() if k in parameters}
            return _score(self._wait(self.function(**verl)))
        answer = self._answer_of(row)
        if self.own:
            given = dict(zip(self.own, (completion, answer), strict=False))
            return _score(self._wait(self.function(**given, **{name: row.get(name) for name in self.others})))
        return _score(self._wait(self.function(completion, answer)))

    @staticmethod
    def _wait(answer: Any) -> Any:
        if not inspect.isawaitable(answer):
            return answer
        return asyncio.run_coroutine_threadsafe(_finished(answer), _loop()).result()


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """One loop in a thread, as TRL has it: clients and locks outlive a call, and a notebook's own loop is not asked."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rewards", daemon=True).start()
    return loop


def _listed(answer: Any, count: int) -> list:
    if isinstance(answer, Iterator):  # TRL takes these too
        answer = list(answer)
    if not hasattr(answer, "__len__") or isinstance(answer, str) or len(answer) != count:
        found = f"{len(answer)} values" if hasattr(answer, "__len__") else _said(answer)
        raise ParameterError(f"returned {found}; expected a list of {count}, one for each completion")
    return list(answer)


def _score(value: Any) -> Any:
    """The reward in what verl takes for one: a number, a dict with `score`, or a tuple that begins with it."""
    if isinstance(value, Mapping):
        return value.get("score")
    return value[0] if isinstance(value, tuple) and value else value


def _said(value: Any) -> str:
    if callable(value):
        return f"a function, {name_of(value)}, so that what you named makes rewards: name what it makes"
    return repr(value)


async def _finished(answer: Any) -> Any:
    return await answer


def _ignore(*_: Any, **__: Any) -> None:
    """Stand for TRL's `log_extra` and `log_metric`."""


def number(value: Any) -> float:
    """A reward as a float; NaN for None.

    Raises:
        ParameterError: no number, or one that is not finite.

    Example:
        >>> number(True), number(None)
        (1.0, nan)
    """
    if value is None:
        return math.nan
    try:
        if isinstance(value, str | bytes):  # no trainer takes "1.0"
            raise TypeError
        found = float(value)
    except (TypeError, ValueError):
        raise ParameterError(
            f"returned {_said(value)}; expected a number, or None for a row that it does not score"
        ) from None
    if not math.isfinite(found):
        raise ParameterError(f"returned {found}; expected a finite number, or None for a row that it does not score")
    return found
