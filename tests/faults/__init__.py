"""The plan, the judge, a small real run, and the page of the recorded one."""
