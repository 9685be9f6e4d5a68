"""The loading of an untrusted model, and its conversion to one opset."""
