"""COIL inside other frameworks and file formats; each module is imported only where it is used."""
