"""Reading a model with distrust, and bringing it to one opset."""
