"""What the notebooks train: recipes, arms over seeds, the embedded models and texts, and one instrument for each problem.

A recipe is the few numbers that decide a training; `train` trains it in a run folder and resumes it.
Needs the extra `train`. Nothing of the trainers or of the audit rests on this folder.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
