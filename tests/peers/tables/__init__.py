"""Models of tables, beside the libraries that made them and those that explain them."""
