"""How the embedded models were made; not part of the package."""
