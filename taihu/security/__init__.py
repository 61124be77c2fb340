"""Who talks to whom: identities, run tokens, certificates, and what each role may ask for."""
