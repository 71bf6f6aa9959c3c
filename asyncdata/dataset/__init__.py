"""The fluent handle on a plan: `Dataset`, the datasets of files, and the checks of their arguments."""
