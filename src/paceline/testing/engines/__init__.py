"""Campaigns on clusters of Ray and Spark: their nodes are killed and added while a run trains on them."""
