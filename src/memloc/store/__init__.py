"""Everything that is kept: paths, whole files, records, locks, identities."""
