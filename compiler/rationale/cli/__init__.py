"""The command line: compile, explain, check, evaluate, references and operators."""
