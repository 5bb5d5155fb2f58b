"""Checks that every decoder reads an image file alike."""
