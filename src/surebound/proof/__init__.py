"""What a verification writes down, so that `surebound.check` can follow it: trees, duals, why layers' bounds hold.

The file format is documented in docs/proof.md.
"""

ROOM = 1e-9  # of a bound's size, left to the checker for roundings of its own
