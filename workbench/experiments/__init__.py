"""What the notebooks train: recipes, arms over seeds, the embedded models and texts, and one instrument for each problem.

A recipe is the few numbers that decide a training; `train` trains it in a run folder and resumes it.
Needs the extra `train`. Nothing of the trainers or of the audit rests on this folder.
"""

from ..extras import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
