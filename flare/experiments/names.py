"""What `flare reproduce` knows by name. A new table or figure is one file and one line here; see CONTRIBUTING.md."""

from __future__ import annotations

ITEMS = {
    "table1": "table1",
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
}
"""Name -> module of flare.experiments that has its ITEM."""

ABSENT = {
    "table2": "Table 2: 6 attentions × 5 tasks of the Long Range Arena",
    "scaling": "time and memory of one layer over the number of points",
    "million": "cars of a million points",
}
"""What the paper has besides. Each leaves this list for the other when it can be done; Table 1 takes the cars as
soon as every budget has a line for `drivaerml`."""
