"""combinax: write a network as an equation between pure functions.

`combinax.combinators` holds the words, `combinax.models` networks written with them, and
`combinax.train` what trains them. This folder is the package: a folder `x` beside this file is
the module `combinax.x`.
"""

__version__ = "0.1.0"
