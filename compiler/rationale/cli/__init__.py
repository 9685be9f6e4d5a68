"""The command line's compile, explain, check, evaluate, references and operators."""
