"""HTTP server for trained surrogates.

The server process receives uploads and sends responses; it holds no model and decodes no upload. Worker processes,
limited in time and memory, read the uploads and compute the fields.

server      starts everything: listening socket, private folder, uvicorn
app         routes · responses: bodies and errors · uploads: receiving files · security: token and origin checks
pool        jobs and the worker processes that run them · worker: what runs inside a worker process
limits      what the server accepts · metrics: Prometheus counters
"""
