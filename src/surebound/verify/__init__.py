"""Deciding properties: an attack, bounds, then branch and bound.

`SEARCHES` are the profiles that users may ask for (`surebound.verify.strategy`): all that surebound does, or what the
paper did.
"""

SEARCHES = ("default", "paper")
FEW_INPUTS = 6
"""That vary, up to which a box is bisected before torch is imported (`surebound.verify.first`)."""
