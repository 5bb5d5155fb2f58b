"""Windows of decoded images -> crops of one size, all images and views in one launch."""
