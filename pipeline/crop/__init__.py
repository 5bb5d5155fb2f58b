"""Crop windows of decoded images to one size, with one launch for all images and views."""
