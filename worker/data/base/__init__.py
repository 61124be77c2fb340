"""The base of data: data sets, the places and forms of their files, statistics, defects."""
