"""Render a plan or a job as text for users and other tools."""
