"""A decision profile in a compile: held against the model before it, put into the manifest after it."""
