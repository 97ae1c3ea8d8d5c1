"""The systems that are compared, each a small file behind one protocol."""
