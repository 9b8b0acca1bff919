"""Control: starts the phases of each cell as processes and turns what they leave into records.

Never imports bench.worker or bench.fit, so it stays small, fast and alive when they die.
"""
