"""Doctor: what a process finds around itself, what of it is wrong, and the setting that mends it.

Reading (`reading`) and judging are apart: every check is facts in, findings out.
"""
