"""Evidence that a trail is whole: signed heads and erasures, and the verification of its rows."""
