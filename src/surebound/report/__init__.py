"""Results as tables, plots and one HTML page with everything in it. Never imports torch, so that it is there at once.

page.make_page("results.sqlite")               the page
tables.table1(store), tables.branching(store)  the paper's experiments, beside the paper's numbers
"""
