"""Runs and findings, for users and programs."""
