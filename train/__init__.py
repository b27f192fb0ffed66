"""combinax.train: data, losses, a small loop, three first tasks, and the command `combinax`.

    combinax recall       a dictionary is shown, then asked
    combinax digits       handwritten digits, with dictionaries alone
    combinax text         the next character of English
    combinax transfer     ten sentences of each intent, by an encoder that others trained
    combinax sample       writes on in the manner of a text that was learned
    combinax chat         talks with SmolLM2, or a model of yours

`loop` trains whatever it is given; `tasks` says what: a term, a stream of data, a loss.
"""
