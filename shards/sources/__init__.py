"""Where labelled images come from: folders, and the archives that ImageNet is distributed as."""
