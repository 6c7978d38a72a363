"""Trained surrogates behind HTTP: upload a mesh, get its fields; queue large ones; ask encoded parts anywhere.

The server process receives and answers and holds no model. Uploads are read, and fields computed, in worker processes
with limits of time and memory, which may die without harm.
"""
