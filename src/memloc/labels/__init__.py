"""Wrong labels of one's own data: find them, repair what learnt them."""
