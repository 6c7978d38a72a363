"""Using a trained network: surrogates, predictions on points and meshes, encodings, error bars, export."""
