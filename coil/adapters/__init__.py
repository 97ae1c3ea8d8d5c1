"""COIL in other frameworks and file formats; each module is imported only when it is used."""
