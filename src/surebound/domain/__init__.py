"""Domains: the inputs that a property is about. Boxes, and balls in ℓ2 and ℓ1, each within a box.

`sets` has them as users write them, with their exact numbers; `balls` has many at once, as tensors.
"""
