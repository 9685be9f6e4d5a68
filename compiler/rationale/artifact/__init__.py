"""What is written: manifest, entries of a model repository, one-shot and open-length graphs."""
