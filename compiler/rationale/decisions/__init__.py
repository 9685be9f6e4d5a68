"""From an explained score to a decision and its reasons: no server, no trail, only rules."""
