"""Print docs/datasets.md:  python -m flare.data.benchmarks.cards > docs/datasets.md"""

from flare.data.benchmarks.cards import as_markdown, card, card_names

INTRODUCTION = """# The benchmarks

Made of the cards in `flare/data/benchmarks/cards` by `python -m flare.data.benchmarks.cards`. Each benchmark has two
sources with one schema, so a preset runs on either: the published files (`flare data download NAME`, `flare data read
NAME`) and our solver of the same equations (`flare data make NAME`). DrivAerML alone has no solver;
`car-potential` stands in for it. The provenance of a dataset says which it is: `published`, `recreated`,
`stand-in` or `user`.
"""

if __name__ == "__main__":
    print(INTRODUCTION, *(as_markdown(card(name)) for name in card_names()), sep="\n", end="")
