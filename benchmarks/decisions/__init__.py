"""What a decision costs over the explanation that it is made of."""
