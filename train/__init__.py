"""combinax.train: data, losses, a small loop, runs, tasks, claims, and the command `combinax`.

    combinax tasks             what there is to train, and what the defaults reach
    combinax train TASK        a run in a folder of its own; also: combinax recall, digits, text
    combinax resume RUN        goes on with a run that was stopped or killed
    combinax eval RUN          measures its best version
    combinax runs, show        those that there are; the equation and the table of one
    combinax sample            writes on in the manner of a text that was learned
    combinax claim NAME        what a paper says, run here
    combinax transfer          ten sentences of each intent, by an encoder that others trained
    combinax chat              talks with SmolLM2, or a model of yours

`loop` trains whatever it is given; `tasks` says what: a term, a stream of data, a loss, a score;
`run` keeps it in a folder.
"""
