"""One module for each contender, with the functions of `faults.program.Module`; `faults.lineup` has their settings."""
