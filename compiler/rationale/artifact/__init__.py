"""The files of a compile: manifest, entries of a model repository, one-shot and open-length graphs."""
