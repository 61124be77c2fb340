"""The report of a run: what it left, as figures in one HTML page; pure but for `taihu.report.reading`."""
