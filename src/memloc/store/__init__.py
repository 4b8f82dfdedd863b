"""Everything on disk: paths, whole files, records, locks, identities."""
