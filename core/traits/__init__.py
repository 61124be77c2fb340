"""Variants as objects with traits: methods of compression, optimizers, stages of ZeRO, kinds of exchange.

Nobody compares their names: who has to know more asks a trait. An installed package adds a variant by an entry point.
"""
