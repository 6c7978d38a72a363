"""Look at data and predictions in a browser: one page, served or written to one HTML file.

source       the contract of everything that can be shown
datasets     samples of a dataset · runs: with predictions and spectra · cases: files · predictions: one prediction
answers      content of the page's requests
server       the page on this machine · standalone: the page and its data as one HTML file
page/        HTML, CSS and JavaScript of the page
"""
