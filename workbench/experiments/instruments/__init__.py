"""The trainings behind the notebooks, one module for each."""
