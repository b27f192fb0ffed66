"""combinax.train: data, losses, a small loop, and three first tasks.

    python -m combinax.train recall       a dictionary is shown, then asked
    python -m combinax.train digits       handwritten digits, with dictionaries alone
    python -m combinax.train text         the next character of English

`loop` trains whatever it is given; `tasks` says what: a term, a stream of data, a loss.
"""
