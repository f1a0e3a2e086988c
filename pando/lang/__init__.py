"""A language for programs that call the model many times."""
