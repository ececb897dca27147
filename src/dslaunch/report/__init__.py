"""Runs and findings, for people and machines."""
