"""Membership, the plan and the end of a run: pure decisions and the service around them. Hosted by server 0."""
