"""Measurements of dslaunch and its peers: `python -m benchmarks` runs all, in a short form.

How they measure:

- Programs that are compared take turns, so that what else the machine does hits all of them.
- Processor time is the figure to compare: seconds on the wall depend on what else runs. The best of
  several rounds counts, since other programs can only add to a time; the median is shown beside it.
- Virtual nodes share the processors of one machine. A real cluster has more.
"""
