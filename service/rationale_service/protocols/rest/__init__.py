"""HTTP: the routes of v1, v2 and the admin API, their codecs, limits and guards."""
