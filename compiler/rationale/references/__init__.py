"""Reference sets: checked, drawn by a policy, condensed, or sent with a request."""
