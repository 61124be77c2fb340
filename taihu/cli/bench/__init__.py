"""`taihu dev bench`: a file for each of its commands."""
