"""How far a prediction can be trusted: error bars of measured coverage, and a warning for strange parts."""
