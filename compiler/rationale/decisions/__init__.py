"""Rules that turn an explained score into a decision and its reasons: no server, no trail."""
