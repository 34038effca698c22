"""TRL's RLOOTrainer with the same stop control and recording as GRPO's."""

import trl

from .grouping import GroupingMixin
from .grpo import RecordingMixin
from .positions import PositionsMixin
from .stopping import StoppingMixin


class RLOOTrainer(PositionsMixin, RecordingMixin, GroupingMixin, StoppingMixin, trl.RLOOTrainer):
    """`trl.RLOOTrainer` whose rows end where `stops` says, on every back end, and whose run can be recorded.

    Args:
        model, reward_funcs, args, ...: `trl.RLOOTrainer`'s.
        stops: when completions end; default at every EOS.
        explicit_positions: see `PositionsMixin`.
        out_dir: run folder to record into.
    """
