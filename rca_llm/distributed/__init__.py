"""A job of many ranks: each rank is a task for an executor, and only small results travel.

`survey` reads a rank and tells what concerns the others; `job` brings that together (who belongs
to the job, on which clock, who waited for whom); `share` analyses the rank with that knowledge;
`job` adds the shares up.
"""
