"""The SW26010 model, computing: what is timed by `taihu.kernels.sw26010` and `taihu.worker.sw26010`, tile by tile."""
