"""Trained models for other libraries: one graph of a model, written as ONNX or as a module of PyTorch."""
