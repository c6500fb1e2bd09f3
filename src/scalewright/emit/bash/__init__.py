"""Bash scripts by meaning, without running them: which commands a script would start, with which words.

text ──tree──► statements ──run──► commands, variables, files that it writes, and what can't be known
                              │
      words (quotes, ${X:-8}, arrays) · arithmetic · conditions · outputs of small programs
"""
