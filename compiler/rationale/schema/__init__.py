"""Schemas of requests and answers: compile request, manifest, decision profile, probes."""
