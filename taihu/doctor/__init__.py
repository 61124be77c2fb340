"""Whether a run would work here and between given machines: facts are collected, findings follow from them."""
