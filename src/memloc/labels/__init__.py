"""Wrong labels in a user's own data: finding them, and repairing models that memorised them."""
