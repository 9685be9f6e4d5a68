"""`rationale decisions report`: how sure the reasons of decisions are, on the rows of a file."""
