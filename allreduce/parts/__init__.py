"""Parts of arrays from every rank to every other one, and the gathers and scatters made of them."""
