"""When completions end, and completions from every back end in one form."""
