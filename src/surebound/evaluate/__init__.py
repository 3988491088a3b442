"""Certifying data sets: every stage before the search for many images at once, and a store of the results."""
