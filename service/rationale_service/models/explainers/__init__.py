"""Explainers as resources: requested over the API, compiled in the background, published while serving.

spec.py            specification of an explainer, and the digest that names its artifact
records.py         records of each explainer and artifact, changed one at a time
worker.py          the child process that compiles
artifact_store.py  compiled entries of the repository
builder.py         makes artifacts, never one twice: starts the worker, watches it and ends it
replica_sync.py    the other replicas: adopts their changes, and waits for them
service.py         the whole way from a request to an entry that answers
"""
