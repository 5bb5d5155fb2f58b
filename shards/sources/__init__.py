"""Sources of labelled images: folders, and the archives that ImageNet is distributed as."""
