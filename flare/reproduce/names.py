"""What `flare reproduce` knows by name. A new table or figure is one file and one line here; see CONTRIBUTING.md."""

from __future__ import annotations

ITEMS = {
    "table1": "table1",
    "table2": "table2",
    "scaling": "scaling",
    "million": "million",
    "blocks-latents": "blocks_latents",
    "shared-latents": "shared_latents",
    "spectra": "spectra",
    "head-dimension": "head_dimension",
    "latent-blocks": "latent_blocks",
    "kv-depth": "kv_depth",
    "ffn-depth": "ffn_depth",
    "qualitative": "qualitative",
    "lpbf": "lpbf_statistics",
    "architectures": "architectures",
    "elasticity-run": "elasticity_run",
    "optimizers": "optimizers",
}
"""Name -> module of flare.reproduce.items that has its ITEM."""
IN_THE_PAPER = {
    "scaling": "Figures 2 and 8",
    "million": "Figure 5",
    "blocks-latents": "Figure 9",
    "shared-latents": "Figure 12",
    "spectra": "as in Figure 12",
    "head-dimension": "Figure 13",
    "latent-blocks": "Figure 11",
    "kv-depth": "Figure 10, left",
    "ffn-depth": "Figure 10, right",
    "qualitative": "Figures 4 and 16",
    "lpbf": "Table 6, Figures 14 and 15",
    "architectures": "Figure 6",
    "elasticity-run": "of Table 1",
}
"""Name -> where it stands, counted in the paper's source; the titles of the others say it."""
