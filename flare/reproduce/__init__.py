"""The paper's tables and figures: jobs, a ledger of records, and the pages made from it."""

ITEMS = {
    "table1": "flare.reproduce.items.table1:TABLE1",
    "table2": "flare.reproduce.items.table2:ITEM",
    "scaling": "flare.reproduce.items.scaling:ITEM",
    "million": "flare.reproduce.items.million:ITEM",
    "blocks-latents": "flare.reproduce.items.ablations:BLOCKS_LATENTS",
    "shared-latents": "flare.reproduce.items.ablations:SHARED_LATENTS",
    "spectra": "flare.reproduce.items.spectra:ITEM",
    "head-dimension": "flare.reproduce.items.ablations:HEAD_DIMENSION",
    "latent-blocks": "flare.reproduce.items.ablations:LATENT_BLOCKS",
    "kv-depth": "flare.reproduce.items.ablations:KV_DEPTH",
    "ffn-depth": "flare.reproduce.items.ablations:FFN_DEPTH",
    "qualitative": "flare.reproduce.items.qualitative:ITEM",
    "lpbf": "flare.reproduce.items.lpbf_statistics:ITEM",
    "architectures": "flare.reproduce.items.architectures:ITEM",
    "elasticity-run": "flare.reproduce.items.table1:ELASTICITY_RUN",
    "cars": "flare.reproduce.items.cars:ITEM",
    "printed-parts": "flare.reproduce.items.printed_parts:ITEM",
    "optimizers": "flare.reproduce.items.optimizers:ITEM",
}
"""Name of a table or figure -> its `Item`, as `module:attribute`."""
