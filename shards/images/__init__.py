"""What an image file is, and whether every decoder reads it alike."""
