"""How good a ranking is: measures of runs against judgements, and whether a difference could be chance."""
