"""taihu trains neural networks on many ordinary machines over ordinary networks."""

__all__ = ["__distribution__", "__version__"]

__distribution__ = "taihu"
__version__ = "0.1.0"
