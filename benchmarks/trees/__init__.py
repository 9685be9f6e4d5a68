"""Boosted trees beside other explainers of trees."""
