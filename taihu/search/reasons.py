"""The reason why one way to run a job loses to another. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from taihu.search.search import ALIKE, Found, Passed
from taihu.search.ways import Candidate

# Of what two steps differ by, the largest difference of a term has to explain so much.
_EXPLAINS = 0.25


def why_it_loses(loser: Found, terms: Mapping[str, float], winner: Found, winners_terms: Mapping[str, float]) -> str:
    """The term that is larger than the winner's, by most, of what a step's time is made of; or what else decided."""
    gap = loser.step.seconds - winner.step.seconds
    if loser.step.seconds <= winner.step.seconds * (1.0 + ALIKE):
        return f"as fast; {_less_preferred(loser.candidate, winner.candidate)}"
    name = max(terms, key=lambda term: terms[term] - winners_terms[term])
    more = terms[name] - winners_terms[name]
    if more < _EXPLAINS * gap:
        return "less of the exchange is hidden behind compute"
    return f"{name}: {terms[name]:.3g} s that nothing hides, {winners_terms[name]:.3g} s in the first"


def why_it_was_passed(passed: Passed, winner: Found) -> str:
    """The floor that kept it from being simulated."""
    floor = passed.floor
    if floor.seconds <= winner.step.seconds * (1.0 + ALIKE):
        return "no faster than others that are preferred to it"
    return f"{floor.largest}: at least {floor.seconds:.3g} s a step"


def _less_preferred(loser: Candidate, winner: Candidate) -> str:
    if loser.way.density < winner.way.density:
        return "sends less of the gradient"
    types = (loser.way.value_type, loser.way.downlink_value_type)
    if types not in ((winner.way.value_type, winner.way.downlink_value_type), ("fp32", "fp32")):
        return "sends fewer bits of a value"
    if loser.way.precision != winner.way.precision:
        return "exchanges less exact values"
    if loser.changes > winner.changes:
        return "changes more of the job"
    if loser.hosts > winner.hosts:
        return "takes more hosts"
    return "takes more servers" if loser.way.servers > winner.way.servers else "there is little between them"
