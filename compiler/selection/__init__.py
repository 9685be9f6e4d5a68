"""What is explained: output, targets, inputs, and the path of operators between them."""
