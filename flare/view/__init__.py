"""Looking at data and predictions in a browser: one page, served from here or written into one file.

source     what can be looked at, and its contract
datasets   the samples of a dataset · runs: those of a run, with its predictions and spectra · cases: files
answers    what the page asks for, as bytes
server     the page on this machine · standalone: the page and its data as one HTML file
page/      the page itself
"""
