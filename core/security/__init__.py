"""Security of the wire: identities, run tokens, certificates, and what each role may ask for."""
