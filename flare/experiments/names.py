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
}
"""Name -> module of flare.experiments that has its ITEM."""
