"""Whether one code recovers slower than another: samples, the rule, change points. Pure, and free of torch.

`samples` says what a trial counts for, `rule` judges two groups of numbers, `comparison` two sides of many scenarios,
and `history` a whole series. scipy and ruptures are imported where they are used: reading samples needs neither.
"""
