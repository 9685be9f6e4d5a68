"""Explainers as resources: asked for over the API, compiled aside, published while the gateway serves.

spec.py         what is asked for, and the digest that names what comes of it
records.py      what is known of each explainer and artefact, in the state's database
worker.py       the child process that compiles; jobs.py starts it, watches it and ends it
artefacts.py    compiled entries: in the repository, or kept aside for the next one who asks
residency.py    which of them are loaded, least recently used first out
explainers.py   the whole way, from a request to an entry that answers
"""
