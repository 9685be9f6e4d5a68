"""Explainers as resources: asked for over the API, compiled aside, published while the gateway serves.

spec.py            what is asked for, and the digest that names what comes of it
records.py         what is known of each explainer and artifact, changed one at a time
worker.py          the child process that compiles
artifact_store.py  compiled entries of the repository
builder.py         makes artifacts, never one twice: starts the worker, watches it and ends it
following.py       the other replicas: takes up what they have written, and waits for them
service.py         the whole way, from a request to an entry that answers
"""
