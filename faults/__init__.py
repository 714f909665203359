"""The same faults for onceward and for what people use instead; a judge that reads nothing but the effects.

`plan.py` draws messages and faults from a seed, `effect.py` is the handler that every contender runs, `lineup.py` says
who takes part and in which mode, `contenders/` has one module for each of them, `fleet.py` and `nemesis.py` are the
processes and what happens to them, `trial.py` puts one contender through it, `judge.py` is the verdict, and `page.py`
makes docs/faults.md of the recorded run.
"""
