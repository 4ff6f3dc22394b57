"""The plots, a file a kind; ``catalogue`` lists them."""
