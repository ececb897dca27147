"""What builds, checks and releases this project; no part of the product."""
