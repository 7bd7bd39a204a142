"""Gamma and related functions."""
