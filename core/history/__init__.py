"""A recorded history of what every process of a run did, and a model that it is checked against."""
